"""`python -m cstp_grpc.server.worker --task-fd FD`: one of several processes that serve on one port."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue

from cstp_grpc.common.garbage_collection import freeze_loaded_objects
from cstp_grpc.platform.child_process import TaskChannel
from cstp_grpc.server.app import App
from cstp_grpc.server.deployment import WorkerTask, log_to_stderr
from cstp_grpc.server.startup_failures import describe_startup_failure


def main() -> int:
    """Serve until SIGTERM and return the exit code: 0 after it, 1 if the worker cannot run."""
    parser = argparse.ArgumentParser(prog="python -m cstp_grpc.server.worker", description="A worker of `cstp serve`.")
    parser.add_argument("--task-fd", type=int, required=True, help="a socket to the supervisor")
    channel = TaskChannel(parser.parse_args().task_fd)
    # A handler runs in the main thread, also while that waits below. `SimpleQueue.put` is reentrant; `Event.set` could
    # deadlock on the lock that the interrupted wait holds.
    signals: SimpleQueue[int] = SimpleQueue()
    for each in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, lambda number, _: signals.put(number))
    received = channel.receive()
    if not received:
        # The supervisor has ended before it sent a task.
        return 0
    task = WorkerTask.decode(received)
    log_to_stderr(task.settings, task.name)
    try:
        with run_server(task) as app:
            channel.report(port=app.port)
            while signals.get() == signal.SIGHUP:
                app.reload()
    except Exception as error:
        message = describe_startup_failure(error)
        if message is None:
            raise
        channel.report(error=message)
        return 1
    return 0


@contextmanager
def run_server(task: WorkerTask) -> Iterator[App]:
    """Run the server of a task within the block. Raises what App raises."""
    app = App(task.settings, deployment=task.deployment)
    try:
        app.start()
        freeze_loaded_objects()
        yield app
    finally:
        app.stop()


if __name__ == "__main__":
    sys.exit(main())
