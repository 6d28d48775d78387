"""`python -m console`: run the console until a stop signal. `cstp console` and `cstp serve --dev` start it."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from console.app import run_console
from console.sessions import ServerTarget
from console.sign_in import ADVICE
from cstp_grpc.common.garbage_collection import freeze_loaded_objects
from cstp_grpc.contract.errors import CannotListen, ConfigError
from cstp_grpc.platform import config
from cstp_grpc.platform.child_process import TaskChannel

logger = logging.getLogger("console")


@dataclass(frozen=True, slots=True)
class ConsoleTask:
    """The server that a console calls, and who may sign in by a link."""

    target: str
    """The server: `[grpc[s]://]host:port`."""
    ca_file: str | None = None
    """A PEM file of the authorities to trust instead of the system's."""
    client_certificate: str | None = None
    """A PEM file with the certificate of the console and its key."""
    link: bool = False
    """Whether to make a link that signs in once with `token`."""
    token: str | None = None
    advice: str | None = None
    """A line on the page of the sign-in that says where tokens are."""
    announce: bool = False
    """Whether to print the address, for a process that has no parent to do it."""

    @classmethod
    def parse(cls, text: bytes) -> ConsoleTask:
        """Return the task from the JSON that another process sent."""
        return cls(**json.loads(text))


def main() -> int:
    """Run the console and return the exit code: 0 after a stop signal, 1 if it cannot run."""
    parser = argparse.ArgumentParser(prog="console")
    parser.add_argument("--config", type=Path)
    parser.add_argument("--task-fd", type=int, required=True)
    arguments = parser.parse_args()
    channel = TaskChannel(arguments.task_fd)
    received = channel.receive()
    if not received:
        return 0
    task = ConsoleTask.parse(received)

    def fail(error: Exception) -> int:
        channel.report(error=f"The console {error}" if isinstance(error, CannotListen) else str(error))
        if task.announce:
            print(error, file=sys.stderr)
        return 1

    try:
        settings = config.load_settings(arguments.config)
        config.log_events_to_stderr(settings.logging)
        # It logs each connection.
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        target = task.target if "://" in task.target else f"grpc://{task.target}"
        authorities = Path(task.ca_file).read_bytes() if task.ca_file else None
        own = Path(task.client_certificate) if task.client_certificate else None
        server = ServerTarget(target, authorities, own)
        asyncio.run(serve_until_stopped(settings.console, server, task, channel.report))
    except (ConfigError, CannotListen, OSError) as error:
        return fail(error)
    return 0


async def serve_until_stopped(
    settings: config.ConsoleSettings, server: ServerTarget, task: ConsoleTask, report: Callable[..., None]
) -> None:
    """Serve until SIGTERM or SIGINT. Raises ConfigError and CannotListen."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    advice = task.advice or ADVICE
    async with run_console(settings, server, advice) as (url, sessions):
        addresses: Mapping[str, str] = {"url": url}
        if task.link:
            addresses = {**addresses, "link": f"{url}/enter?link={sessions.create_link(task.token)}"}
        report(**addresses)
        if task.announce:
            with suppress(BrokenPipeError):
                print(f"The console is at {addresses.get('link', url)} for the server at {server.target}.", flush=True)
        freeze_loaded_objects()
        logger.info("listening on %s, calling %s", url, server.target)
        await stop.wait()
        logger.info("stopping")


if __name__ == "__main__":
    sys.exit(main())
