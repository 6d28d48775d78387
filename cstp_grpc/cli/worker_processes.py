"""Several server processes on one port."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack

from cstp_grpc.cli.port_reservation import PortReservation
from cstp_grpc.cli.supervised_process import Notify, Program, SupervisedProcess, stop_all
from cstp_grpc.config import Settings, join, reachable
from cstp_grpc.guardrails.rulebook_files import RulebookFile, read_files
from cstp_grpc.process import GRACE_SECONDS
from cstp_grpc.server.deployment import INDEX_FOLDER, Deployment, rulebook_path
from cstp_grpc.server.interceptors.moving_windows import create_shared_memory
from cstp_grpc.server.worker_task import WorkerTask
from cstp_grpc.storage.lock import DataLock

LOOPBACK = "127.0.0.1"
START_SECONDS = 300.0
"""How long a worker may take to serve: the first one migrates the database and may fetch the weights of the model."""
STOP_SECONDS = 10.0
"""How long a worker may take to stop beside the time for draining: open streams, a batch for the index."""


class WorkerProcesses:
    """Runs `number` servers with the same settings, which share a port and the data folder.

    The kernel spreads connections over those that live. Each also serves the bridges on a loopback port of its own,
    without TLS. Raises AlreadyRunning and CannotReserve.
    """

    def __init__(self, settings: Settings, number: int) -> None:
        with ExitStack() as opened:
            lock = opened.enter_context(DataLock(settings.data_dir))
            shared = PortReservation(settings.grpc.host, settings.grpc.port, "grpc.port")
            opened.callback(shared.release)
            self._private = [PortReservation(LOOPBACK, 0, "grpc.port") for _ in range(number)]
            for reservation in self._private:
                opened.callback(reservation.release)
            self._limits_memory, self._vectors_memory = create_shared_memory(), create_shared_memory()
            for memory in (self._limits_memory, self._vectors_memory):
                opened.callback(os.close, memory)
            self._index_url = start_index(opened, settings)
            self._opened = opened.pop_all()
        self._rulebooks = read_rulebooks(settings)
        grpc = settings.grpc.model_copy(update={"port": shared.port})
        self._settings = settings.model_copy(update={"grpc": grpc})
        stop_seconds = settings.grpc.drain_seconds + STOP_SECONDS
        self.processes = [
            SupervisedProcess(
                Program(
                    f"Worker {index + 1}",
                    "cstp_grpc.server.worker",
                    # As long as one of them lives, nobody else has the data folder.
                    inherit=[lock.fileno(), self._limits_memory, self._vectors_memory],
                    start_seconds=START_SECONDS,
                    stop_seconds=max(stop_seconds, GRACE_SECONDS),
                )
            )
            for index in range(number)
        ]

    @property
    def target(self) -> str:
        """Where local clients find the servers: `host:port`."""
        return join(reachable(self._settings.grpc.host), self._settings.grpc.port)

    @property
    def url(self) -> str:
        """The same with its scheme."""
        return f"{'grpcs' if self._settings.grpc.tls else 'grpc'}://{self.target}"

    @property
    def private_target(self) -> str:
        """Where children of this process find one of the servers without TLS: `host:port`."""
        return join(LOOPBACK, self._private[0].port)

    @property
    def private_targets(self) -> list[str]:
        """The same of all servers."""
        return [join(LOOPBACK, reservation.port) for reservation in self._private]

    def start(self) -> None:
        """Start the processes and have them serve. Raises ChildFailed.

        They load what they need at the same time. The first one goes ahead: it finds what is wrong with the settings,
        so that this is told once, and brings the database up to date.
        """
        for each in self.processes:
            each.prepare()
        for index, each in enumerate(self.processes):
            each.assign(self._encode_task(index))
            if index == 0:
                each.wait_until_ready()
        for each in self.processes[1:]:
            each.wait_until_ready()

    def keep_alive(self, notify: Notify) -> None:
        """Start each again whenever it dies."""
        for each in self.processes:
            each.keep_alive(notify)

    def stop(self) -> None:
        """Stop all at the same time, calls in progress draining, and wait for their end."""
        stop_all(self.processes)
        self._opened.close()

    def _encode_task(self, index: int) -> bytes:
        deployment = Deployment(
            supervised=True,
            private_port=self._private[index].port,
            limits_memory=self._limits_memory,
            vectors_memory=self._vectors_memory,
            index_url=self._index_url,
            feeds_index=index == 0,
            rulebooks=self._rulebooks,
        )
        return WorkerTask(f"worker {index + 1}", self._settings, deployment).encode()


def read_rulebooks(settings: Settings) -> Sequence[RulebookFile] | None:
    """Return the files of the configured rulebooks; None if they cannot be read, which the first worker says."""
    try:
        return read_files(rulebook_path(settings))
    except OSError:
        return None


def start_index(opened: ExitStack, settings: Settings) -> str | None:
    """Start the Chroma server of all workers and return its URL; None if they need none of ours."""
    if settings.index.mode != "embedded":
        return None
    # What it needs beside the standard library, a supervisor without it does not load.
    from cstp_grpc.decisions.index.keeper import ChromaKeeper
    from cstp_grpc.decisions.index.servers import EmbeddedChroma, free_port

    # Workers are told once where it is, so that it stays there.
    port = free_port()
    keeper = ChromaKeeper(EmbeddedChroma(settings.data_dir / INDEX_FOLDER, port))
    keeper.start()
    opened.callback(keeper.stop)
    return f"http://{LOOPBACK}:{port}"
