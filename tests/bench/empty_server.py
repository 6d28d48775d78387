"""A gRPC server with one method that does nothing: `python -m tests.bench.empty_server KIND`."""

from __future__ import annotations

import asyncio
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import grpc
import uvloop

from cstp_grpc.core.audit.refused_calls import RefusalCounter
from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from cstp_grpc.platform import config
from cstp_grpc.server.execution import CallPools
from cstp_grpc.server.grpc_server import GrpcServer, build_call_policy
from tests.bench.clients import TOKEN
from tests.bench.server import noop_handlers

KINDS = ("threads", "asyncio", "uvloop", "reading", "chain")


def main() -> None:
    kind = sys.argv[1]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    match kind:
        case "threads":
            serve_by_threads()
        case "chain":
            serve_by_chain()
        case _:
            handlers = reading_handlers() if kind == "reading" else noop_handlers()
            with asyncio.Runner(loop_factory=None if kind == "asyncio" else uvloop.new_event_loop) as runner:
                runner.run(serve_by_loop(handlers))


def serve_by_threads() -> None:
    """Serve on a pool of threads."""
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Noop", {"Call": handler}),))
    say(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    signal.sigwait({signal.SIGTERM})
    server.stop(0)


async def serve_by_loop(handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
    """Serve on the running event loop."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    say(server.add_insecure_port("127.0.0.1:0"))
    await server.start()
    await asyncio.get_running_loop().run_in_executor(None, signal.sigwait, {signal.SIGTERM})
    await server.stop(0)


def reading_handlers() -> tuple[grpc.GenericRpcHandler, ...]:
    """Return the handlers of a method that itself reads its one message, as ours do, and does nothing with it."""

    async def answer(_: object, context: Any) -> bytes:
        await context.read()
        return b""

    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_unary_rpc_method_handler(answer)
    return (grpc.method_handlers_generic_handler("bench.Noop", {"Call": handler}),)


class EmptyServicer(cstp_pb2_grpc.CstpServiceServicer):
    """Answers checks with nothing."""

    async def CheckGuardrails(  # noqa: N802 - the name of the method
        self, request: Any, context: Any
    ) -> cstp_pb2.CheckGuardrailsResponse:
        return cstp_pb2.CheckGuardrailsResponse()


def serve_by_chain() -> None:
    """Serve as the product does, all that surrounds a call included, with a servicer that does nothing."""
    settings = config.load_settings(
        None,
        grpc={"port": 0},
        auth={"tokens": [{"name": "bench", "token": TOKEN, "permissions": ["check"]}]},
        rate_limits={"enabled": False},
    )
    policy = build_call_policy(settings, RefusalCounter(lambda: datetime.now(UTC)))
    # The generated base class answers other methods with UNIMPLEMENTED; only its stub calls it abstract.
    servicer = EmptyServicer()  # type: ignore[abstract]
    servicers = [(cstp_pb2_grpc.add_CstpServiceServicer_to_server, servicer)]
    server = GrpcServer(settings.grpc, policy, servicers, {}, CallPools())
    say(server.start().port)
    signal.sigwait({signal.SIGTERM})
    server.stop(0)


def say(port: int) -> None:
    """Tell the parent where this server listens."""
    print(port, flush=True)


if __name__ == "__main__":
    main()
