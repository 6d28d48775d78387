"""The measured server: a process of its own, with a no-op beside it that shows what a bare gRPC call costs."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc

from cstp_grpc import config
from cstp_grpc.server.app import App
from cstp_grpc.vocabulary import Permission
from tests.bench.clients import TOKEN


def settings(data_dir: Path, audit: bool, provider: str, peers: Sequence[int] = ()) -> config.Settings:
    """Return the settings of a laptop, without rate limits."""
    return config.load(
        None,
        data_dir=data_dir,
        grpc={"port": 0, "max_message_bytes": 64 * 1024 * 1024},
        server={"port": 0},
        auth={"tokens": [{"name": "bench", "token": TOKEN, "permissions": list(Permission)}]},
        rate_limits={"enabled": False},
        audit={"enabled": audit},
        embedding={"provider": provider},
        liaison={"pillars": {"content": {"agent": "bench"}}, "heartbeat_seconds": 86_400},
        federation={
            "peers": [
                {"name": f"p{at}", "url": f"grpc://127.0.0.1:{port}", "token": TOKEN} for at, port in enumerate(peers)
            ]
        },
    )


def noop_server(workers: int) -> tuple[grpc.Server, int]:
    """Return a bare server with one method that answers with nothing."""
    handler = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    server = grpc.server(ThreadPoolExecutor(workers), options=[("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Noop", {"Call": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("data_dir", type=Path)
    parser.add_argument("--no-audit", action="store_true")
    parser.add_argument("--provider", default="minilm")
    parser.add_argument("--peer", type=int, action="append", default=[], help="the port of a peer")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    wanted = settings(arguments.data_dir, not arguments.no_audit, arguments.provider, arguments.peer)
    app = App(wanted)
    app.start()
    noop, noop_port = noop_server(8)
    print(json.dumps({"grpc": app.port, "noop": noop_port, "ready": time.time()}), flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    noop.stop(0)
    app.stop(0)


if __name__ == "__main__":
    # Before any thread starts, so that each inherits the mask and sigwait gets the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    main()
