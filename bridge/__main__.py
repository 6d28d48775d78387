"""`python -m bridge`: runs the bridge as a process of its own until it is told to stop."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path

from bridge.channel import SECURE, Upstream
from bridge.connections import allow_descriptors
from bridge.listening import CannotListen
from bridge.running import running
from cstp_grpc import config
from cstp_grpc.config import ConfigError, Settings, join, reachable

logger = logging.getLogger("bridge")

HANGUP = "SIGHUP is ignored: settings cannot be read anew yet, and SIGTERM stops the bridge"


def main() -> int:
    """Run the bridge and return the exit code: 0 after a stop signal, 1 where it cannot run."""
    arguments = read_arguments()
    try:
        settings = config.load(arguments.config)
        logging.basicConfig(
            level=settings.logging.level.upper(),
            stream=sys.stderr,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
        target, announced = arguments.grpc_target, None
        if arguments.targets_fd is not None:
            target, announced = read_targets(arguments.targets_fd)
            if not target:
                return 0
        upstream = upstream_of(settings, target, announced)
        allow_descriptors(settings.server.max_connections)
        asyncio.run(serve(settings, upstream, arguments.port_file, arguments.a2a_port_file))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except CannotListen as error:
        print(f"The bridge {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"The bridge cannot write its port file: {error}", file=sys.stderr)
        return 1
    return 0


def read_arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bridge", description="JSON-RPC 2.0 and A2A for the CSTP server.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the settings, a YAML file")
    parser.add_argument(
        "--grpc-target", metavar="TARGET", help="the gRPC server, [grpcs://]HOST:PORT; overrides the settings"
    )
    parser.add_argument(
        "--targets-fd",
        type=int,
        metavar="FD",
        help="a file descriptor to read the gRPC server from and, in a second line, how others reach it",
    )
    parser.add_argument("--port-file", type=Path, metavar="PATH", help="a file to write HOST:PORT to when listening")
    parser.add_argument("--a2a-port-file", type=Path, metavar="PATH", help="the same for A2A over gRPC")
    return parser.parse_args()


def read_targets(descriptor: int) -> tuple[str, str | None]:
    """Wait for the parent to say where the gRPC server is, and how others reach it; empty if there will be none."""
    with os.fdopen(descriptor, encoding="utf-8") as file:
        target, _, announced = file.read().partition("\n")
    return target, announced.strip() or None


def upstream_of(settings: Settings, target: str | None, announced: str | None) -> Upstream:
    """Return the gRPC server that the command line or else the settings name.

    Raises ConfigError where neither does and its port is left open.
    """
    configured = target or settings.server.grpc_target
    if configured:
        return Upstream(configured, settings.server.grpc_ca_file, announced)
    if settings.grpc.port == 0:
        raise ConfigError("server.grpc_target: is needed where grpc.port is 0")
    address = join(reachable(settings.grpc.host), settings.grpc.port)
    if settings.grpc.tls is None:
        return Upstream(address, announced=announced)
    # Our own server has the certificate that the settings name, whoever certifies it.
    return Upstream(f"{SECURE}://{address}", settings.server.grpc_ca_file or settings.grpc.tls.certificate, announced)


async def serve(settings: Settings, upstream: Upstream, port_file: Path | None, a2a_port_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT, then let the requests in progress end; SIGHUP is ignored.

    Raises OSError, ConfigError and CannotListen.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, logger.warning, HANGUP)
    async with running(settings, upstream, version("cstp-grpc")) as addresses:
        # Who waits for the first file finds the other one too.
        for path, address in ((a2a_port_file, addresses.grpc), (port_file, addresses.http)):
            if path:
                write_atomically(path, address)
        logger.info("listening on %s, forwarding to %s", addresses.url, upstream.announced or upstream.target)
        logger.info("A2A over gRPC on %s", addresses.grpc)
        await stop.wait()
        logger.info("stopping")


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is either absent or whole to whoever reads it."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main())
