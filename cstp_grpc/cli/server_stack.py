"""A running CSTP: the server in this process or in worker processes, and its bridges."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pydantic import SecretStr

from cstp_grpc.cli import process_supervision as supervision
from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.core.guardrails.rulebook_files import RulebookCopy
from cstp_grpc.platform.child_process import GRACE_SECONDS
from cstp_grpc.platform.config import Settings, count_bridges, count_workers, dial_host, join_host_port
from cstp_grpc.platform.storage.locks import DataDirLock
from cstp_grpc.server.deployment import RULEBOOK_COPY, Deployment, WorkerTask
from cstp_grpc.server.interceptors.rate_limits import create_shared_memory

if TYPE_CHECKING:
    from cstp_grpc.platform.config import MetricsSettings
    from cstp_grpc.server.app import App
    from cstp_grpc.server.metrics_server import MetricsServer


@dataclass(frozen=True, slots=True)
class BridgeAddress:
    """The addresses of a bridge."""

    url: str
    a2a_target: str | None
    """The `host:port` of A2A over gRPC; None if A2A is disabled."""
    metrics_url: str | None
    """The URL of the metrics of all bridges; None if metrics are disabled."""


@dataclass(frozen=True, slots=True)
class ConsoleAccess:
    """How a developer gets into the console."""

    token: str | None
    """The token with which a link signs in once; None where no server checks tokens."""
    advice: str
    """A line on the page of the sign-in."""


class ConsoleProcess(supervision.ProcessGroup):
    """The console for a developer, which calls the server of this process."""

    def __init__(self, config_file: Path | None, access: ConsoleAccess) -> None:
        self._access = access
        self._opened = ExitStack()
        arguments = ["--config", str(config_file)] if config_file else []
        self.processes = [supervision.SupervisedProcess(supervision.ChildProgram("The console", "console", arguments))]
        self.url = ""
        """The address, with a link that signs in once."""

    def start(self, target: str) -> str:
        """Have it call the server at a target and return its URL without a link. Raises ChildProcessFailed."""
        (process,) = self.processes
        task = {"target": target, "link": True, "token": self._access.token, "advice": self._access.advice}
        process.assign(json.dumps(task).encode())
        report = process.wait_until_ready()
        self.url = str(report["link"])
        return str(report["url"])


class BridgeProcesses(supervision.ProcessGroup):
    """One or more bridges to a server on the same two ports.

    `config_file` is what they read; `environment` replaces that of this process.
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
        self._opened = ExitStack()
        self._metrics: WorkerMetrics | None = None
        stop_seconds = settings.grpc.drain_seconds + GRACE_SECONDS
        arguments = ["--config", str(config_file)] if config_file else []
        self.processes = [
            supervision.SupervisedProcess(
                supervision.ChildProgram(
                    "The bridge" if number == 1 else f"Bridge {index + 1}",
                    "bridge",
                    arguments,
                    environment,
                    stop_seconds=stop_seconds,
                )
            )
            for index in range(number)
        ]

    def start(self, target: str, announced: str, console_url: str | None = None) -> BridgeAddress:
        """Have them serve the server at `target`, and return their address.

        `target` may be several `host:port`, separated by commas; `announced` is the address by which others reach the
        server; `console_url` is where browsers are sent. Raises ChildProcessFailed and PortReservationFailed.
        """
        key = self._settings.auth.bridge_key
        task: dict[str, object] = {"target": target, "announced": announced, "console_url": console_url}
        task["bridge_key"] = None if key is None else key.get_secret_value()
        tasks = [task] * len(self.processes)
        if len(self.processes) > 1:
            task["shared_ports"] = self._reserve()
            metrics = self._settings.metrics
            self._metrics = build_worker_metrics(
                self._opened, metrics, metrics.bridge_port, "metrics.bridge_port", len(self.processes)
            )
            if self._metrics:
                tasks = [{**task, "metrics_port": port.port} for port in self._metrics.ports]
        for each, given in zip(self.processes, tasks, strict=True):
            each.assign(json.dumps(given).encode())
        reports = [each.wait_until_ready() for each in self.processes]
        if self._metrics:
            self._metrics.start(self._opened)
        return self.address(reports[0])

    def runs(self, program: supervision.ChildProgram) -> bool:
        return any(each.program is program for each in self.processes)

    def address(self, report: supervision.ReadinessReport) -> BridgeAddress:
        """Return the address that a bridge reported, in a form that can be called from this machine."""
        a2a = report["a2a"]
        return BridgeAddress(
            f"{self._scheme}://{to_local_address(report['http'])}",
            None if a2a is None else to_local_address(a2a),
            self._metrics.endpoint.url if self._metrics else report["metrics"],
        )

    def _reserve(self) -> dict[str, int]:
        server, a2a = self._settings.server, self._settings.a2a
        reserved = {"http": supervision.PortReservation(server.host, server.port, "server.port")}
        self._opened.callback(reserved["http"].release)
        if a2a.enabled:
            reserved["a2a"] = supervision.PortReservation(a2a.grpc_host, a2a.grpc_port, "a2a.grpc_port")
            self._opened.callback(reserved["a2a"].release)
        return {name: reservation.port for name, reservation in reserved.items()}


def to_local_address(address: str) -> str:
    """Return the `host:port` by which a listener can be called from this machine."""
    host, _, port = address.rpartition(":")
    return join_host_port(dial_host(host.strip("[]")), int(port))


LOOPBACK = "127.0.0.1"
START_SECONDS = 300.0
"""Seconds that a worker may take to become ready. Chosen: the first one may migrate the database and download a model.
"""
STOP_SECONDS = 10.0
"""Seconds that a worker may take to stop after draining. Chosen: for open streams and a batch for the index."""


class WorkerProcesses(supervision.ProcessGroup):
    """Runs `number` servers with the same settings, which share a port and the data folder.

    The kernel spreads connections over the live ones. Each also serves the bridges on a loopback port of its own,
    without TLS. Raises AlreadyRunning and PortReservationFailed.
    """

    def __init__(self, settings: Settings, number: int) -> None:
        with ExitStack() as opened:
            lock = opened.enter_context(DataDirLock(settings.data_dir))
            shared = supervision.PortReservation(settings.grpc.host, settings.grpc.port, "grpc.port")
            opened.callback(shared.release)
            self._private = [supervision.PortReservation(LOOPBACK, 0, "grpc.port") for _ in range(number)]
            for reservation in self._private:
                opened.callback(reservation.release)
            # Before any worker starts, because all of them inherit the descriptors, also those that are restarted: the
            # contents survive the death of every worker.
            self._limits_memory, self._vectors_memory = create_shared_memory(), create_shared_memory()
            for memory in (self._limits_memory, self._vectors_memory):
                opened.callback(os.close, memory)
            metrics = settings.metrics
            self._metrics = build_worker_metrics(opened, metrics, metrics.port, "metrics.port", number)
            self._opened = opened.pop_all()
        # The rules of an earlier run are not those with which a worker may begin.
        RulebookCopy(settings.data_dir / RULEBOOK_COPY).remove()
        grpc = settings.grpc.model_copy(update={"port": shared.port})
        self._settings = settings.model_copy(update={"grpc": grpc})
        stop_seconds = settings.grpc.drain_seconds + STOP_SECONDS
        self.processes = [
            supervision.SupervisedProcess(
                supervision.ChildProgram(
                    f"Worker {index + 1}",
                    "cstp_grpc.server.worker",
                    # The lock is inherited: while a worker lives, no other server can open the data folder, even if
                    # this process was killed.
                    inherit=[lock.fileno(), self._limits_memory, self._vectors_memory],
                    start_seconds=START_SECONDS,
                    stop_seconds=max(stop_seconds, GRACE_SECONDS),
                )
            )
            for index in range(number)
        ]

    @property
    def metrics_url(self) -> str | None:
        return self._metrics.endpoint.url if self._metrics else None

    @property
    def target(self) -> str:
        return join_host_port(dial_host(self._settings.grpc.host), self._settings.grpc.port)

    @property
    def url(self) -> str:
        return f"{'grpcs' if self._settings.grpc.tls else 'grpc'}://{self.target}"

    @property
    def private_target(self) -> str:
        """The `host:port` of one server without TLS, for children of this process."""
        return join_host_port(LOOPBACK, self._private[0].port)

    @property
    def private_targets(self) -> list[str]:
        return [join_host_port(LOOPBACK, reservation.port) for reservation in self._private]

    def start(self) -> None:
        """Start the processes and have them serve. Raises ChildProcessFailed.

        They load their modules concurrently. The first one starts serving alone: it finds errors in the settings, so
        that they are printed once, and migrates the database.
        """
        self.prepare()
        for index, each in enumerate(self.processes):
            each.assign(self._encode_task(index))
            if index == 0:
                each.wait_until_ready()
        # All of them have their task by now, so that these waits overlap.
        for each in self.processes[1:]:
            each.wait_until_ready()
        if self._metrics:
            self._metrics.start(self._opened)

    def reload(self) -> None:
        for each in self.processes:
            each.request_reload()

    def _encode_task(self, index: int) -> bytes:
        deployment = Deployment(
            supervised=True,
            private_port=self._private[index].port,
            metrics_port=self._metrics.ports[index].port if self._metrics else None,
            limits_memory=self._limits_memory,
            vectors_memory=self._vectors_memory,
            reads_database_figures=index == 0,
            rulebook_copy=self._settings.data_dir / RULEBOOK_COPY,
        )
        return WorkerTask(f"worker {index + 1}", self._settings, deployment).encode()


@dataclass(frozen=True, slots=True)
class WorkerMetrics:
    """Where several processes of a kind tell their metrics, and what serves them together."""

    ports: Sequence[supervision.PortReservation]
    """Of each process, on loopback."""
    endpoint: MetricsServer

    def start(self, opened: ExitStack) -> None:
        self.endpoint.start()
        opened.callback(self.endpoint.stop)


def build_worker_metrics(
    opened: ExitStack, settings: MetricsSettings, served: int | None, setting: str, number: int
) -> WorkerMetrics | None:
    """Reserve ports for the metrics of processes, and build what serves them together on one port.

    None is returned if the settings name no port. Raises ConfigError and PortReservationFailed.
    """
    if served is None:
        return None
    # Imported here: a supervisor loads little apart from the standard library.
    from cstp_grpc.platform.telemetry.metrics_endpoint import METRICS_PATH, MetricsEndpoint, MetricsPort
    from cstp_grpc.server.metrics_server import MetricsServer
    from cstp_grpc.server.worker_metrics import WorkerCollector

    ports = [supervision.PortReservation(LOOPBACK, 0, setting) for _ in range(number)]
    for reservation in ports:
        opened.callback(reservation.release)
    urls = {
        str(index): f"http://{join_host_port(LOOPBACK, reservation.port)}{METRICS_PATH}"
        for index, reservation in enumerate(ports, start=1)
    }
    token = settings.token
    collector = WorkerCollector(urls, None if token is None else token.get_secret_value())
    endpoint = MetricsEndpoint(collector, settings, MetricsPort(served, setting))
    return WorkerMetrics(ports, MetricsServer(endpoint))


class ServerStack:
    """A running server, with a bridge if `bridge` is set; a `with` block stops everything at its end.

    The settings give the number of processes. `config_file` is what the bridge reads; None leaves it to the defaults
    and the environment, which `environment` replaces. The bridge calls the server without TLS, since the certificate
    need not be for this machine; `private` opens such a `private_target` without a bridge too; `console` runs the
    console. Raises what App, WorkerProcesses and BridgeProcesses raise, and ConfigError if the bridge's certificate is
    unusable.
    """

    server: App | WorkerProcesses

    def __init__(
        self,
        settings: Settings,
        config_file: Path | None,
        *,
        bridge: bool,
        private: bool = False,
        environment: Mapping[str, str] | None = None,
        console: ConsoleAccess | None = None,
    ) -> None:
        self.bridge_address: BridgeAddress | None = None
        self._drain_seconds = settings.grpc.drain_seconds
        self._drains_until: float | None = None
        self._bridges: BridgeProcesses | None = None
        self._workers: WorkerProcesses | None = None
        self.console: ConsoleProcess | None = None
        with ExitStack() as opened:
            if console:
                self.console = ConsoleProcess(config_file, console)
                opened.callback(self.console.stop)
                self.console.prepare()
            if bridge:
                settings = with_bridge_key(settings)
                check_certificate(settings)
                self._bridges = BridgeProcesses(settings, config_file, count_bridges(settings.serve), environment)
                opened.callback(self._bridges.stop)
                # Loading modules is most of a start, so that bridges and server do it concurrently.
                self._bridges.prepare()
            bridge_target = self._start_server(opened, settings, private=private or bridge or console is not None)
            console_url = None
            if self.console:
                # It has pages open, which would delay the server.
                opened.callback(self.console.stop)
                console_url = self.console.start(bridge_target.partition(",")[0])
            if self._bridges:
                # Registered a second time, because callbacks run in reverse: the bridges stop before the server, so
                # that no calls come through them while it drains. Stopping them again is harmless.
                opened.callback(self._bridges.stop)
                self.bridge_address = self._bridges.start(bridge_target, self.server.url, console_url)
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything and let calls in progress drain."""
        self._drains_until = time.monotonic() + self._drain_seconds
        self._opened.close()

    @property
    def bridge_url(self) -> str | None:
        return self.bridge_address.url if self.bridge_address else None

    def keep_alive(self, notify: supervision.RestartCallback) -> None:
        """Restart processes that die, and notify the callback."""
        for each in (self._workers, self._bridges, self.console):
            if each:
                each.keep_alive(notify)

    def record_restart(self, restarted: supervision.ChildRestarted) -> bool:
        """Store the address of a restarted process; return whether it is a bridge."""
        if self._bridges is None or not self._bridges.runs(restarted.program):
            return False
        self.bridge_address = self._bridges.address(restarted.report)
        return True

    def _start_server(self, opened: ExitStack, settings: Settings, *, private: bool) -> str:
        """Start the server and return its target for bridges."""
        number = count_workers(settings.serve)
        if number > 1:
            self.server = self._workers = WorkerProcesses(settings, number)
            opened.callback(self._workers.stop)
            self._workers.start()
            # All of them: a bridge calls every worker in turn, where one connection to the shared port would reach one
            # worker only.
            return ",".join(self._workers.private_targets)
        # Imported here: the supervisor of several servers does not need it.
        from cstp_grpc.server.app import App

        app = App(settings)
        self.server = app
        # Before `start`, so that what the constructor opened is closed if the server cannot start.
        opened.callback(self._stop_app, app)
        app.start(private=private)
        return app.private_target

    def _stop_app(self, app: App) -> None:
        """Stop the server of this process within what the bridge left of the drain time."""
        remaining = 0.0 if self._drains_until is None else self._drains_until - time.monotonic()
        app.stop(max(remaining, min(self._drain_seconds, GRACE_SECONDS)))


def with_bridge_key(settings: Settings) -> Settings:
    """Return the settings with a key by which the server recognizes its bridge, made here if none is configured."""
    if settings.auth.bridge_key is not None:
        return settings
    key = SecretStr(secrets.token_urlsafe(32))
    return settings.model_copy(update={"auth": settings.auth.model_copy(update={"bridge_key": key})})


def check_certificate(settings: Settings) -> None:
    """Raise ConfigError for a certificate that the bridge could not use, before anything is started."""
    if settings.server.tls is not None:
        from cstp_grpc.platform.certificates import ServerCertificate

        ServerCertificate.load(settings.server.tls, "server.tls")
