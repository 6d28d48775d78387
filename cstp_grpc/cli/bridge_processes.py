"""The bridge as child processes that are kept alive."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cstp_grpc.cli.port_reservation import PortReservation
from cstp_grpc.cli.supervised_process import Notify, Program, Report, SupervisedProcess, stop_all
from cstp_grpc.config import Settings, join, reachable
from cstp_grpc.process import GRACE_SECONDS


@dataclass(frozen=True, slots=True)
class BridgeAddress:
    """Where a bridge listens."""

    url: str
    a2a_target: str
    """A2A over gRPC, `host:port`."""


class BridgeProcesses:
    """One or more bridges to a server on the same two ports; `config_file` is what they read.

    `environment` replaces that of this process.
    """

    def __init__(
        self,
        settings: Settings,
        config_file: Path | None,
        number: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._settings = settings
        self._scheme = "https" if settings.server.tls else "http"
        self._reserved: list[PortReservation] = []
        stop_seconds = settings.grpc.drain_seconds + GRACE_SECONDS
        arguments = ["--config", str(config_file)] if config_file else []
        self.processes = [
            SupervisedProcess(
                Program(
                    "The bridge" if number == 1 else f"Bridge {index + 1}",
                    "bridge",
                    arguments,
                    environment,
                    stop_seconds=stop_seconds,
                )
            )
            for index in range(number)
        ]

    def prepare(self) -> None:
        """Start the processes, which load what they need and then wait to be told their server."""
        for each in self.processes:
            each.prepare()

    def start(self, target: str, announced: str) -> BridgeAddress:
        """Have them serve the server at `target` and return where they listen. Raises ChildFailed and CannotReserve.

        `target` may be several `host:port` with commas between; `announced` is how others reach the server.
        """
        task: dict[str, object] = {"target": target, "announced": announced}
        if len(self.processes) > 1:
            task["shared_ports"] = self._reserve()
        for each in self.processes:
            each.assign(json.dumps(task).encode())
        reports = [each.wait_until_ready() for each in self.processes]
        return self.address(reports[0])

    def keep_alive(self, notify: Notify) -> None:
        """Start each again whenever it dies."""
        for each in self.processes:
            each.keep_alive(notify)

    def runs(self, program: Program) -> bool:
        """Whether a program is one of the bridges."""
        return any(each.program is program for each in self.processes)

    def address(self, report: Report) -> BridgeAddress:
        """Return the address that a bridge told, as one that can be called from here."""
        return BridgeAddress(f"{self._scheme}://{local_address(report['http'])}", local_address(report["a2a"]))

    def stop(self) -> None:
        """Stop all at the same time and wait for their end."""
        stop_all(self.processes)
        for reservation in self._reserved:
            reservation.release()
        self._reserved.clear()

    def _reserve(self) -> dict[str, int]:
        server, a2a = self._settings.server, self._settings.a2a
        self._reserved.append(PortReservation(server.host, server.port, "server.port"))
        self._reserved.append(PortReservation(a2a.grpc_host, a2a.grpc_port, "a2a.grpc_port"))
        http, grpc = self._reserved
        return {"http": http.port, "a2a": grpc.port}


def local_address(address: str) -> str:
    """Return the `host:port` by which a listener can be called from here."""
    host, _, port = address.rpartition(":")
    return join(reachable(host.strip("[]")), int(port))
