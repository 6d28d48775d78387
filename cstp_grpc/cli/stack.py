"""A whole CSTP in this process and its children: server and bridge."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from cstp_grpc.certificates import ServerCertificate
from cstp_grpc.cli.bridge_processes import BridgeAddress, BridgeProcesses
from cstp_grpc.cli.supervised_process import Notify, Restarted
from cstp_grpc.config import Settings
from cstp_grpc.server.app import App


class Stack:
    """A running server, with `bridges` processes of the bridge; all are stopped at the end of a `with` block.

    `config_file` is what the bridge reads; None leaves it to the defaults and the environment, which `environment`
    replaces. The bridge calls the server at its `private_target`, since the certificate need not be for this machine;
    `private` asks for it without a bridge too. Raises what App and BridgeProcesses raise, and ConfigError where the
    bridge's certificate is unusable.
    """

    def __init__(
        self,
        settings: Settings,
        config_file: Path | None,
        *,
        bridges: int,
        private: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.bridges: BridgeProcesses | None = None
        self.bridge_address: BridgeAddress | None = None
        with ExitStack() as opened:
            if bridges:
                ServerCertificate.of(settings.server.tls, "server.tls")
                self.bridges = BridgeProcesses(settings, config_file, bridges, environment)
                opened.callback(self.bridges.stop)
                # Loading takes both of them most of their start, so they do it at the same time.
                self.bridges.prepare()
            self.app = App(settings)
            opened.callback(self.app.stop)
            self.app.start(private=private or bridges > 0)
            if self.bridges:
                # The bridge stops first, so that nobody calls through it any more when the server drains.
                opened.callback(self.bridges.stop)
                self.bridge_address = self.bridges.start(self.app.private_target, self.app.url)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        """Return the stack itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything."""
        self._opened.close()

    @property
    def bridge_url(self) -> str | None:
        """The URL of the bridge; None where there is none."""
        return self.bridge_address.url if self.bridge_address else None

    def keep_alive(self, notify: Notify) -> None:
        """Start what dies again, and tell what came of it."""
        if self.bridges:
            self.bridges.keep_alive(notify)

    def take_restart(self, restarted: Restarted) -> None:
        """Note where a process listens that was started again."""
        if self.bridges:
            self.bridge_address = self.bridges.address(restarted.report)


def log_to_stderr(settings: Settings) -> None:
    """Write the log to standard error, one line an event."""
    logging.basicConfig(
        level=settings.logging.level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    # Alembic tells every migration step and httpx every request; the server itself says what matters.
    for talkative in ("alembic", "httpx"):
        logging.getLogger(talkative).setLevel(logging.WARNING)
