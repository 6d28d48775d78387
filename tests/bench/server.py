"""The measured server: a process of its own, with a no-op beside it that shows what a bare gRPC call costs."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from pathlib import Path

import grpc

from cstp_grpc.common.garbage_collection import freeze_loaded_objects
from cstp_grpc.contract.enums import Permission
from cstp_grpc.platform import config
from cstp_grpc.server.app import App
from tests.bench.clients import OTHER_TOKEN, TOKEN


def settings(arguments: argparse.Namespace) -> config.Settings:
    """Return the settings of a laptop, without rate limits."""
    everything = list(Permission)
    peers = [
        {"name": f"p{at}", "url": f"grpc://127.0.0.1:{port}", "token": TOKEN} for at, port in enumerate(arguments.peer)
    ]
    return config.load_settings(
        None,
        data_dir=arguments.data_dir,
        grpc={"port": 0, "max_message_bytes": 64 * 1024 * 1024},
        server={"port": 0},
        auth={
            "tokens": [
                {"name": "bench", "token": TOKEN, "permissions": everything},
                {"name": "other", "token": OTHER_TOKEN, "permissions": everything},
            ]
        },
        rate_limits={"enabled": False},
        audit={"enabled": not arguments.no_audit},
        embedding={"provider": arguments.provider},
        cstp={"guardrails": {"config_path": arguments.rules}},
        intent_layer={"projects": [{"name": "bench", "root": arguments.project}] if arguments.project else []},
        liaison={"pillars": {"content": {"agent": "bench"}}, "heartbeat_seconds": 86_400},
        federation={"peers": peers},
        metrics={"port": 0} if arguments.metrics else {},
    )


async def answer_with_nothing(request: bytes, context: object) -> bytes:
    """Answer a call that does nothing."""
    return b""


def noop_handlers() -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of a service with a method that does nothing."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer_with_nothing)
    return (grpc.method_handlers_generic_handler("bench.Noop", {"Call": handler}),)


async def start_noop() -> int:
    """Serve a method that does nothing on the running loop, and return its port."""
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers(noop_handlers())
    port: int = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    servers.append(server)
    return port


servers: list[grpc.aio.Server] = []
"""What has been started, since a server that nobody refers to stops."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--no-audit", action="store_true")
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--provider", default="lexical")
    parser.add_argument("--rules", type=Path, help="a rulebook; the default one unless given")
    parser.add_argument("--project", type=Path, help="the folder of a project named `bench`")
    parser.add_argument("--peer", type=int, action="append", default=[], help="the port of a peer")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    app = App(settings(arguments))
    app.start()
    # On the loop of the measured server, since each further loop of a process is woken by all events of gRPC.
    loop = app._server._loop
    assert loop is not None, "the server has started"
    noop_port = loop.run(start_noop())
    # As `cstp serve` does; else collections of garbage are part of what is measured.
    freeze_loaded_objects()
    print(json.dumps({"grpc": app.port, "noop": noop_port}), flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    loop.run(servers.pop().stop(0))
    app.stop(0)


if __name__ == "__main__":
    # Before any thread starts, so that each inherits the mask and sigwait gets the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
