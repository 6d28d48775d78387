"""`python -m bridge`: run the bridge as a process of its own until it receives a stop signal."""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import uvloop

from bridge.app import ListenAddresses, run_bridge
from bridge.upstream import SECURE_SCHEME, Upstream, require_encrypted_target
from cstp_grpc.common.extras import MissingExtra
from cstp_grpc.common.garbage_collection import freeze_loaded_objects
from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.errors import CannotListen
from cstp_grpc.platform import config
from cstp_grpc.platform.child_process import TaskChannel
from cstp_grpc.platform.config import ConfigError, Settings, dial_host, join_host_port
from cstp_grpc.platform.config.exposure import BRIDGE_LISTENERS, check_listeners
from cstp_grpc.platform.http_listener import raise_descriptor_limit

logger = logging.getLogger("bridge")

SIGHUP_MESSAGE = "SIGHUP is ignored: settings cannot be reloaded yet, and SIGTERM stops the bridge"


@dataclass(frozen=True, slots=True)
class BridgeTask:
    """The server that a bridge forwards to, and how the bridge listens."""

    target: str | None = None
    """The gRPC server; None for the one of the settings."""
    announced: str | None = None
    """The address at which others reach the server, if it differs."""
    shared_ports: Mapping[str, int] | None = None
    """The ports of `http` and, unless it is left out, `a2a` that several bridges listen on; None for those of the
    settings.
    """
    bridge_key: str | None = None
    """The secret by which the server recognizes the bridge; None for the one of the settings."""
    metrics_port: int | None = None
    """A loopback port on which the parent asks for metrics, to serve those of several bridges; None if this bridge
    serves its own."""
    console_url: str | None = None
    """Where browsers that open `/` are sent; None for the URL of the settings, if any."""

    @classmethod
    def parse(cls, text: bytes) -> BridgeTask:
        """Return the task from the JSON that a parent process sent."""
        return cls(**json.loads(text))


AddressReporter = Callable[[ListenAddresses], object]
"""Reports the addresses on which the bridge listens. Raises OSError."""


def main() -> int:
    """Run the bridge and return the exit code: 0 after a stop signal, 1 if it cannot run."""
    arguments = read_arguments()
    if arguments.task_fd is None:
        files = ((arguments.a2a_port_file, "grpc"), (arguments.port_file, "http"))
        task = BridgeTask(target=arguments.grpc_target)
        return run_bridge_process(
            arguments.config,
            task,
            functools.partial(write_port_files, files),
            print_error,
            require_safe_settings=not arguments.insecure,
        )
    channel = TaskChannel(arguments.task_fd)
    preload_modules(arguments.config)
    received = channel.receive()
    if not received:
        return 0
    return run_bridge_process(
        arguments.config,
        BridgeTask.parse(received),
        lambda addresses: channel.report(http=addresses.http, a2a=addresses.grpc, metrics=addresses.metrics_url),
        lambda error: channel.report(error=error),
        require_safe_settings=False,
    )


def preload_modules(config_file: Path | None) -> None:
    """Load what the settings will need, while the parent process starts the server."""
    # Invalid settings are reported later, by `run_bridge_process`.
    with suppress(ConfigError):
        if config.load_settings(config_file).a2a.enabled:
            importlib.import_module("bridge.a2a.module")


def run_bridge_process(
    config_file: Path | None,
    task: BridgeTask,
    ready: AddressReporter,
    fail: Callable[[str], object],
    *,
    require_safe_settings: bool = True,
) -> int:
    """Serve until a stop signal and return the exit code; `fail` receives the reason if the bridge cannot run.

    `require_safe_settings` is for a bridge without a parent: a parent process has already checked the settings, and has
    its server on this machine.
    """
    try:
        settings = config.load_settings(config_file)
        config.log_events_to_stderr(settings.logging)
        if require_safe_settings:
            check_listeners(settings, BRIDGE_LISTENERS)
        if task.shared_ports:
            settings = with_ports(settings, task.shared_ports)
        configured = settings.auth.bridge_key
        upstream = replace(
            resolve_upstream(settings, task.target, task.announced),
            bridge_key=task.bridge_key or (None if configured is None else configured.get_secret_value()),
            client_certificate=settings.server.grpc_client_certificate,
        )
        if require_safe_settings and not settings.serve.insecure:
            require_encrypted_target(upstream.target)
        raise_descriptor_limit(settings.server.max_connections)
        uvloop.run(serve_until_stopped(settings, upstream, ready, task))
    except (ConfigError, MissingExtra) as error:
        fail(str(error))
        return 1
    except CannotListen as error:
        fail(f"The bridge {error}")
        return 1
    except OSError as error:
        fail(f"The bridge cannot write its port file: {error}")
        return 1
    return 0


def print_error(message: str) -> None:
    print(message, file=sys.stderr)


def with_ports(settings: Settings, ports: Mapping[str, int]) -> Settings:
    server = settings.server.model_copy(update={"port": ports["http"]})
    a2a = settings.a2a.model_copy(update={"grpc_port": ports["a2a"]}) if settings.a2a.enabled else settings.a2a
    return settings.model_copy(update={"server": server, "a2a": a2a})


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bridge", description="JSON-RPC 2.0 and A2A for the CSTP server.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the settings, a YAML file")
    parser.add_argument(
        "--grpc-target", metavar="TARGET", help="the gRPC server, [grpcs://]HOST:PORT; overrides the settings"
    )
    parser.add_argument("--insecure", action="store_true", help="connect to other machines without TLS, both ways")
    parser.add_argument(
        "--task-fd", type=int, metavar="FD", help="a socket to read the task from, and to tell a parent how that went"
    )
    parser.add_argument("--port-file", type=Path, metavar="PATH", help="a file to write HOST:PORT to when listening")
    parser.add_argument("--a2a-port-file", type=Path, metavar="PATH", help="the same for A2A over gRPC")
    return parser.parse_args()


def resolve_upstream(settings: Settings, target: str | None, announced: str | None) -> Upstream:
    """Return the gRPC server given by the command line, or else by the settings.

    Raises ConfigError if neither names one and the settings leave its port open.
    """
    configured = target or settings.server.grpc_target
    if configured:
        return Upstream(configured, settings.server.grpc_ca_file, announced)
    if settings.grpc.port == 0:
        raise ConfigError("server.grpc_target: is needed where grpc.port is 0")
    address = join_host_port(dial_host(settings.grpc.host), settings.grpc.port)
    if settings.grpc.tls is None:
        return Upstream(address, announced=announced)
    # Our own server has the certificate that the settings name, whatever its authority.
    return Upstream(
        f"{SECURE_SCHEME}://{address}", settings.server.grpc_ca_file or settings.grpc.tls.certificate, announced
    )


async def serve_until_stopped(settings: Settings, upstream: Upstream, ready: AddressReporter, task: BridgeTask) -> None:
    """Serve until SIGTERM or SIGINT, then let the requests in progress end; SIGHUP is ignored.

    Raises OSError, ConfigError and CannotListen.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, logger.warning, SIGHUP_MESSAGE)
    reuse_ports = task.shared_ports is not None
    async with run_bridge(
        settings,
        upstream,
        reuse_ports=reuse_ports,
        inner_metrics_port=task.metrics_port,
        console_url=task.console_url or settings.console.public_url,
    ) as addresses:
        ready(addresses)
        freeze_loaded_objects()
        logger.info("listening on %s, forwarding to %s", addresses.url, upstream.announced or upstream.target)
        if addresses.grpc:
            logger.info("A2A over gRPC on %s", addresses.grpc)
        if addresses.metrics_url:
            logger.info("metrics on %s", addresses.metrics_url)
        await stop.wait()
        logger.info("stopping")


def write_port_files(files: Sequence[tuple[Path | None, str]], addresses: ListenAddresses) -> None:
    """Write the addresses to files in the given order, so that the last file implies the others exist."""
    for path, name in files:
        if path and (address := getattr(addresses, name)):
            write_atomically(path, address)


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that readers see either no file or the complete text."""
    # With the process id, so that two bridges do not write to one file. A process that is killed meanwhile leaves an
    # unfinished file, which nobody reads.
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main())
