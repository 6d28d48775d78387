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

from bridge.listening import CannotListen
from bridge.running import running
from cstp_grpc import config
from cstp_grpc.config import ConfigError, Settings, join, reachable

logger = logging.getLogger("bridge")


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
        target = arguments.grpc_target or target_of(settings)
        asyncio.run(serve(settings, target, arguments.port_file, arguments.a2a_port_file))
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
    parser.add_argument("--grpc-target", metavar="HOST:PORT", help="the gRPC server; overrides the settings")
    parser.add_argument("--port-file", type=Path, metavar="PATH", help="a file to write HOST:PORT to when listening")
    parser.add_argument("--a2a-port-file", type=Path, metavar="PATH", help="the same for A2A over gRPC")
    return parser.parse_args()


def target_of(settings: Settings) -> str:
    """Return the gRPC server that the settings name. Raises ConfigError where they leave its port open."""
    if settings.server.grpc_target:
        return settings.server.grpc_target
    if settings.grpc.port == 0:
        raise ConfigError("server.grpc_target: is needed where grpc.port is 0")
    return join(reachable(settings.grpc.host), settings.grpc.port)


async def serve(settings: Settings, target: str, port_file: Path | None, a2a_port_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT, then let the requests in progress end.

    Raises OSError, ConfigError and CannotListen.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with running(settings, target, version("cstp-grpc")) as addresses:
        # Who waits for the first file finds the other one too.
        for path, address in ((a2a_port_file, addresses.grpc), (port_file, addresses.http)):
            if path:
                write_atomically(path, address)
        logger.info("listening on http://%s, forwarding to %s", addresses.http, target)
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
