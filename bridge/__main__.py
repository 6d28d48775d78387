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
from typing import Final

from aiohttp import web

from bridge.app import create_app
from bridge.channel import connect
from cstp_grpc import config
from cstp_grpc.config import ConfigError, Settings

logger = logging.getLogger("bridge")

WILDCARDS: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where to call a server that listens everywhere


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
        asyncio.run(serve(settings, arguments.grpc_target or target_of(settings), arguments.port_file))
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"The bridge cannot listen or write its port file: {error}", file=sys.stderr)
        return 1
    return 0


def read_arguments() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m bridge", description="JSON-RPC 2.0 over HTTP for the CSTP server.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the settings, a YAML file")
    parser.add_argument("--grpc-target", metavar="HOST:PORT", help="the gRPC server; overrides the settings")
    parser.add_argument("--port-file", type=Path, metavar="PATH", help="a file to write HOST:PORT to when listening")
    return parser.parse_args()


def target_of(settings: Settings) -> str:
    """Return the gRPC server that the settings name. Raises ConfigError where they leave its port open."""
    if settings.server.grpc_target:
        return settings.server.grpc_target
    if settings.grpc.port == 0:
        raise ConfigError("server.grpc_target: is needed where grpc.port is 0")
    return join(WILDCARDS.get(settings.grpc.host, settings.grpc.host), settings.grpc.port)


async def serve(settings: Settings, target: str, port_file: Path | None) -> None:
    """Serve until SIGTERM or SIGINT, then let the requests in progress end. Raises OSError and ConfigError."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with connect(target) as channel:
        app = create_app(settings.server, settings.agent, version("cstp-grpc"), channel)
        # Compressed bodies are refused, so nothing of them must be unpacked while they are read off the connection.
        runner = web.AppRunner(
            app, access_log=None, auto_decompress=False, shutdown_timeout=settings.grpc.drain_seconds
        )
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.server.host, settings.server.port).start()
            address = join(*runner.addresses[0][:2])
            if port_file:
                write_atomically(port_file, address)
            logger.info("listening on http://%s, forwarding to %s", address, target)
            await stop.wait()
            logger.info("stopping")
        finally:
            await runner.cleanup()


def join(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is either absent or whole to whoever reads it."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


if __name__ == "__main__":
    sys.exit(main())
