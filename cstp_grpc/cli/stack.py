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
from cstp_grpc.cli.bridge_process import BridgeAddress, BridgeProcess
from cstp_grpc.config import Settings
from cstp_grpc.process import GRACE_SECONDS
from cstp_grpc.server.app import App

BRIDGE_PORT_FILE = "bridge.port"


class Stack:
    """A running server, with a bridge where `bridge` asks for one; both are stopped at the end of a `with` block.

    `config_file` is what the bridge reads; None leaves it to the defaults and the environment, which `environment`
    replaces. The bridge calls the server at its `private_target`, since the certificate need not be for this machine;
    `private` asks for it without a bridge too. Raises what App and BridgeProcess raise, and ConfigError where the
    bridge's certificate is unusable.
    """

    def __init__(
        self,
        settings: Settings,
        config_file: Path | None,
        *,
        bridge: bool,
        private: bool = False,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if bridge:
            ServerCertificate.of(settings.server.tls, "server.tls")
        self.bridge: BridgeProcess | None = None
        self.bridge_address: BridgeAddress | None = None
        with ExitStack() as opened:
            if bridge:
                self.bridge = BridgeProcess(
                    config_file,
                    settings.data_dir / BRIDGE_PORT_FILE,
                    # Once for its requests, and once for its work on tasks.
                    stop_seconds=2 * settings.grpc.drain_seconds + GRACE_SECONDS,
                    secure=settings.server.tls is not None,
                    environment=environment,
                )
                opened.callback(self.bridge.stop)
                # Loading takes both of them most of their start, so they do it at the same time.
                self.bridge.prepare()
            self.app = App(settings)
            opened.callback(self.app.stop)
            self.app.start(private=private or bridge)
            if self.bridge:
                # The bridge stops first, so that nobody calls through it any more when the server drains.
                opened.callback(self.bridge.stop)
                self.bridge_address = self.bridge.start(self.app.private_target, self.app.url)
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

    def check(self) -> bool:
        """Start the bridge again if it has died, and return whether it has. Raises BridgeFailed."""
        revived = self.bridge.revive() if self.bridge else None
        if revived:
            self.bridge_address = revived
        return revived is not None


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
