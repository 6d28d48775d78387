"""A whole CSTP in this process and its children: server and bridge."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from cstp_grpc.cli.bridge_processes import BridgeAddress, BridgeProcesses
from cstp_grpc.cli.supervised_process import Notify, Restarted
from cstp_grpc.cli.worker_processes import WorkerProcesses
from cstp_grpc.config import Settings, count_bridges, count_workers
from cstp_grpc.process import GRACE_SECONDS

if TYPE_CHECKING:
    from cstp_grpc.server.app import App


class RunningServer(Protocol):
    """A server that runs, in this process or in children."""

    @property
    def target(self) -> str:
        """Where local clients find it: `host:port`."""

    @property
    def url(self) -> str:
        """The same with its scheme, `grpc://` or `grpcs://`."""

    @property
    def private_target(self) -> str:
        """Where this process and its children find it, without TLS: `host:port`."""


class Stack:
    """A running server, with a bridge where `bridge` asks for one; all is stopped at the end of a `with` block.

    How many processes each has is in the settings. `config_file` is what the bridge reads; None leaves it to the
    defaults and the environment, which `environment` replaces. The bridge calls the server without TLS, since the
    certificate need not be for this machine; `private` asks for such a `private_target` without a bridge too. Raises
    what App, WorkerProcesses and BridgeProcesses raise, and ConfigError where the bridge's certificate is unusable.
    """

    server: RunningServer

    def __init__(
        self,
        settings: Settings,
        config_file: Path | None,
        *,
        bridge: bool,
        private: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.bridge_address: BridgeAddress | None = None
        self._drain_seconds = settings.grpc.drain_seconds
        self._drains_until: float | None = None
        self._bridges: BridgeProcesses | None = None
        self._workers: WorkerProcesses | None = None
        with ExitStack() as opened:
            if bridge:
                check_certificate(settings)
                self._bridges = BridgeProcesses(settings, config_file, count_bridges(settings.serve), environment)
                opened.callback(self._bridges.stop)
                # Loading takes all of them most of their start, so they do it at the same time.
                self._bridges.prepare()
            bridge_target = self._start_server(opened, settings, private=private or bridge)
            if self._bridges:
                # The bridge stops first, so that nobody calls through it any more when the server drains.
                opened.callback(self._bridges.stop)
                self.bridge_address = self._bridges.start(bridge_target, self.server.url)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        """Return the stack itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything, calls in progress draining."""
        self._drains_until = time.monotonic() + self._drain_seconds
        self._opened.close()

    @property
    def bridge_url(self) -> str | None:
        """The URL of the bridge; None where there is none."""
        return self.bridge_address.url if self.bridge_address else None

    def keep_alive(self, notify: Notify) -> None:
        """Start what dies again, and tell what came of it."""
        for each in (self._workers, self._bridges):
            if each:
                each.keep_alive(notify)

    def take_restart(self, restarted: Restarted) -> bool:
        """Note where a process listens that was started again; return whether it is a bridge."""
        if self._bridges is None or not self._bridges.runs(restarted.program):
            return False
        self.bridge_address = self._bridges.address(restarted.report)
        return True

    def _start_server(self, opened: ExitStack, settings: Settings, *, private: bool) -> str:
        """Start the server and return where bridges find it."""
        number = count_workers(settings.serve)
        if number > 1:
            self.server = self._workers = WorkerProcesses(settings, number)
            opened.callback(self._workers.stop)
            self._workers.start()
            return ",".join(self._workers.private_targets)
        # The supervisor of several servers does without what one of them needs.
        from cstp_grpc.server.app import App

        app = App(settings)
        self.server = app
        opened.callback(self._stop_app, app)
        app.start(private=private)
        return app.private_target

    def _stop_app(self, app: App) -> None:
        """Stop the server of this process; what the bridge took of the time for draining is gone."""
        left = 0.0 if self._drains_until is None else self._drains_until - time.monotonic()
        app.stop(max(left, min(self._drain_seconds, GRACE_SECONDS)))


def check_certificate(settings: Settings) -> None:
    """Refuse a certificate that the bridge could not use before anything is started. Raises ConfigError."""
    if settings.server.tls is not None:
        from cstp_grpc.certificates import ServerCertificate

        ServerCertificate.of(settings.server.tls, "server.tls")
