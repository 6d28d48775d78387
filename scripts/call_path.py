"""List the source files of ours that one warm call enters, from the socket to the disk.

    python scripts/call_path.py                         the three calls whose lists stand in docs/architecture.md
    python scripts/call_path.py cstp.checkGuardrails '{"action": {"description": "deploy"}}' --over jsonrpc

A server and a bridge run in this process, in a temporary folder. The call is made several times, and the last ones are
recorded, by a profile function on every thread but the one that calls; the shortest list is kept, since periodic work
of the server may fall into a call. Generated code does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import grpc

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

WARM_UP = 5
"""Calls before the recorded one, so that caches are filled."""
RECORDED = 3
"""Calls that are recorded."""
TRANSPORTS = ("grpc", "jsonrpc", "a2a")
CHECK = {"action": {"description": "deploy the shop", "category": "deployment", "stakes": "high"}}
ANNOUNCE = {"intent": "deploy the shop", "category": "deployment", "stakes": "high"}
SHOWN = (
    ("cstp.checkGuardrails", CHECK, "grpc"),
    ("cstp.announceIntent", ANNOUNCE, "grpc"),
    ("cstp.checkGuardrails", CHECK, "a2a"),
)


@dataclass
class CallRecorder:
    """Records which files of ours are entered on the threads of the server, and how deep their stacks are."""

    functions: int = 0
    """How many calls of our functions there were; a coroutine counts each time it goes on."""
    files: dict[str, None] = field(default_factory=dict)
    """In the order in which they are entered."""
    deepest: tuple[str, ...] = ()
    """The functions of the deepest stack, outermost first."""
    active: bool = False

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Take one event of a profiled thread."""
        if not self.active or event != "call" or own_file(frame) is None:
            return
        stack = []
        at: FrameType | None = frame
        while at is not None:
            if (name := own_file(at)) is not None:
                stack.append(f"{name}: {at.f_code.co_qualname}")
            at = at.f_back
        self.functions += 1
        self.files.setdefault(str(own_file(frame)))
        if len(stack) > len(self.deepest):
            self.deepest = tuple(reversed(stack))


def own_file(frame: FrameType) -> str | None:
    """Return the path of a frame's file within the project, or None if it is generated or somebody else's."""
    return OWN_FILES.get(frame.f_code.co_filename)


OWN_FILES = {
    str(path): str(path.relative_to(ROOT))
    for package in ("cstp_grpc", "bridge")
    for path in (ROOT / package).rglob("*.py")
    if "gen" not in path.relative_to(ROOT).parts
}


@contextmanager
def running_servers(folder: Path) -> Iterator[tuple[str, str]]:
    """Run a server and a bridge to it; yield the gRPC target and the URL of the bridge."""
    from bridge.app import run_bridge
    from bridge.upstream import Upstream
    from cstp_grpc.platform import config
    from cstp_grpc.server.app import App

    settings = config.load_settings(
        None,
        data_dir=folder,
        auth={"enabled": False},
        grpc={"port": 0},
        server={"port": 0},
        a2a={"grpc_port": 0},
        embedding={"provider": "lexical"},
    )
    app = App(settings)
    app.start()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    addresses: list[str] = []
    listening = threading.Event()

    async def serve_bridge() -> None:
        async with run_bridge(settings, Upstream(app.target)) as found:
            addresses.append(found.url)
            listening.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve_bridge()), name="bridge")
    thread.start()
    try:
        if not listening.wait(timeout=30):
            raise RuntimeError("the bridge does not listen")
        yield app.target, addresses[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        app.stop()


def build_caller(method: str, params: Mapping[str, Any], transport: str, target: str, url: str) -> Callable[[], Any]:
    """Return a function that makes the call once over the transport and raises if it fails."""
    if transport == "grpc":
        from cstp_grpc.contract.json_codec import from_json
        from cstp_grpc.contract.methods import contract_methods

        rpc = contract_methods()[method]
        channel = grpc.insecure_channel(target)
        invoke = channel.unary_unary(rpc.path, rpc.request.SerializeToString, rpc.response.FromString)
        request = from_json(params, rpc.request)
        return lambda: invoke(request, timeout=30)
    if transport == "jsonrpc":
        return lambda: post_json(f"{url}/cstp", {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, {})
    part = {"data": {"method": method, "params": params}}

    def send_message() -> Any:
        message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [part]}
        body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
        return post_json(f"{url}/a2a", body, {"A2A-Version": "1.0"})

    return send_message


def post_json(url: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> Any:
    """Return the result of a JSON-RPC call. Raises RuntimeError with the error."""
    content = json.dumps(body).encode()
    request = urllib.request.Request(url, content, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=30) as response:
        answer = json.load(response)
    if "error" in answer:
        raise RuntimeError(json.dumps(answer["error"]))
    return answer["result"]


def record_call(method: str, params: Mapping[str, Any], transport: str) -> CallRecorder:
    """Start servers, warm the call up and return what one call more enters."""
    recorders = [CallRecorder() for _ in range(RECORDED)]

    def record_event(frame: FrameType, event: str, argument: object) -> None:
        for recorder in recorders:
            recorder(frame, event, argument)

    # Only threads that start from now on are profiled, which leaves out the caller's own.
    threading.setprofile(record_event)
    try:
        with ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            target, url = opened.enter_context(running_servers(folder))
            call = build_caller(method, params, transport, target, url)
            for _ in range(WARM_UP):
                call()
            for recorder in recorders:
                recorder.active = True
                call()
                recorder.active = False
    finally:
        threading.setprofile(None)
    return min(recorders, key=lambda recorder: len(recorder.files))


def print_record(title: str, record: CallRecorder, *, with_stack: bool) -> None:
    """Print the files of a call in the order in which it enters them."""
    depth = f"at most {len(record.deepest)} frames of ours on a stack"
    print(f"{title}: {len(record.files)} files, {record.functions} calls of our functions, {depth}")
    for number, name in enumerate(record.files, 1):
        print(f"  {number:2} {name}")
    if with_stack:
        print("  deepest stack:")
        for name in record.deepest:
            print(f"     {name}")


def unary_methods() -> list[str]:
    """Return the JSON-RPC names of the methods that can be called here."""
    from cstp_grpc.contract.methods import contract_methods

    return sorted(name for name, rpc in contract_methods().items() if not rpc.streaming)


def main() -> None:
    """Read the command line, make the calls and print their files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", nargs="?", help="its JSON-RPC name; without it, the three calls of the documentation")
    parser.add_argument("params", nargs="?", default={}, type=json.loads, help="its params as JSON")
    parser.add_argument("--over", choices=TRANSPORTS, default="grpc")
    parser.add_argument("--stack", action="store_true", help="print the deepest stack too")
    arguments = parser.parse_args()
    if arguments.method is not None and arguments.method not in (known := unary_methods()):
        parser.error(f"there is no unary method {arguments.method}; there are {', '.join(known)}")
    calls = SHOWN if arguments.method is None else ((arguments.method, arguments.params, arguments.over),)
    for method, params, transport in calls:
        print_record(f"{method} over {transport}", record_call(method, params, transport), with_stack=arguments.stack)


if __name__ == "__main__":
    main()
