"""Cerbos and OPA: their installation in pinned versions, and servers of them on this machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from cstp_grpc.gen.cstp.v1 import cstp_pb2
from tests.bench.clients import GrpcMethod, HttpMethod, Method, cstp_method, dialled
from tests.bench.guardrail_batches import action_to_json
from tests.bench.guardrail_rules import ACTION
from tests.bench.peer_policies import KIND, Context, Judge, cerbos_policy, opa_policy
from tests.bench.processes import START_TIMEOUT, Served, free_port, stop
from tests.waiting import wait_until

INSTALLED = Path("var/peers")
"""Where they are installed, once; no part of the tree."""
CERBOS = "0.51.0"
OPA = "v1.22.4"
INSTALL_TIMEOUT = 1_800.0
CHECK_RESOURCES = "CheckResources"
CERBOS_SERVICE = "cerbos.svc.v1.CerbosService"
OPA_PATH = "/v1/data/rules/deny"


class PeerMissing(Exception):
    """A program cannot be had here."""


@dataclass(frozen=True)
class Peer:
    """A running server that decides about actions: its process, the measured call, and a way to ask it anything."""

    pid: int
    method: Method
    judge: Judge
    stops_early: bool = False
    """Whether it evaluates no further rule once one denies the action. None denies the measured one."""


def find_cerbos() -> Path:
    """Return the program of Cerbos, installed from npm if need be. Raises PeerMissing."""
    folder = (INSTALLED / f"cerbos-{CERBOS}").absolute()
    arch = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    name = f"cerbos-{platform.system().lower()}-{arch}"
    program = folder / "node_modules" / "@cerbos" / name / name
    install(program, ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", f"cerbos@{CERBOS}"])
    return program


def find_opa() -> Path:
    """Return the program of OPA, built by Go if need be. Raises PeerMissing."""
    folder = (INSTALLED / f"opa-{OPA}").absolute()
    # One package at a time: the linker and the compiler of a large one need a gigabyte each.
    command = ["go", "install", "-p", "1", f"github.com/open-policy-agent/opa@{OPA}"]
    install(folder / "opa", command, {"GOBIN": str(folder)})
    return folder / "opa"


def install(program: Path, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    """Run a command that installs a program, unless it is there. Raises PeerMissing."""
    if program.exists():
        return
    if shutil.which(command[0]) is None:
        raise PeerMissing(f"there is no {command[0]} to install it with")
    INSTALLED.mkdir(parents=True, exist_ok=True)
    try:
        done = subprocess.run(
            command, env={**os.environ, **(environment or {})}, capture_output=True, text=True, timeout=INSTALL_TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"{command[0]} takes more than {INSTALL_TIMEOUT:.0f} s") from None
    if done.returncode or not program.exists():
        last = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()][-1:]
        raise PeerMissing(f"{command[0]} cannot install it: {''.join(last) or f'{program.name} is missing'}")


@contextmanager
def running(command: Sequence[str], port: int, name: str) -> Iterator[int]:
    """Run a server until it listens, and yield its process; it writes to no terminal."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def listens() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"{name} did not start: exit code {process.returncode}")
            with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return True
            return False

        wait_until(listens, f"{name} listens", START_TIMEOUT)
        yield process.pid
    finally:
        stop(process)


@contextmanager
def cerbos_server(folder: Path, rules: int, *, audited: bool) -> Iterator[Peer]:
    """Run Cerbos with so many rules, on request with its audit in a file. Raises PeerMissing."""
    program, port = find_cerbos(), free_port()
    folder = folder / f"cerbos{'-audited' if audited else ''}-{rules}"
    folder.mkdir()
    settings = {
        "server": {"httpListenAddr": f"unix:{folder / 'http'}", "grpcListenAddr": f"127.0.0.1:{port}"},
        "storage": {
            "driver": "disk",
            "disk": {"directory": str(cerbos_policy(folder, rules)), "watchForChanges": False},
        },
        "telemetry": {"disabled": True},
        "audit": {"enabled": audited, "backend": "file", "file": {"path": str(folder / "audit.log")}},
    }
    # JSON is YAML, too.
    config = folder / "config.yaml"
    config.write_text(json.dumps(settings))
    with (
        running([str(program), "server", f"--config={config}", "--log-level=error"], port, "Cerbos") as pid,
        dialled(port) as channel,
    ):
        request_for, judge = cerbos_client(channel)
        request = request_for(ACTION.context)
        method = GrpcMethod(port, f"/{CERBOS_SERVICE}/{CHECK_RESOURCES}", (), lambda: request)
        yield Peer(pid, method, judge, stops_early=True)


def cerbos_client(channel: grpc.Channel) -> tuple[Callable[[Context], bytes], Judge]:
    """Return a function that writes requests about actions, and one that makes them."""
    # The server describes its messages, so that nothing of it is installed here.
    pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(channel))
    rpc = pool.FindServiceByName(CERBOS_SERVICE).methods_by_name[CHECK_RESOURCES]
    request_class, response_class = map(message_factory.GetMessageClass, (rpc.input_type, rpc.output_type))
    invoke: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/{CERBOS_SERVICE}/{CHECK_RESOURCES}")

    def request_for(context: Context) -> bytes:
        resource = {"kind": KIND, "id": "1", "attr": dict(context)}
        content = {
            "principal": {"id": ACTION.agent, "roles": ["agent"]},
            "resources": [{"actions": [KIND], "resource": resource}],
        }
        request: bytes = json_format.ParseDict(content, request_class()).SerializeToString()
        return request

    def judge(context: Context) -> list[str]:
        answer = response_class.FromString(invoke(request_for(context), timeout=60))
        (result,) = json_format.MessageToDict(answer)["results"]
        named = [each["val"] for each in result.get("outputs", ())]
        if result["actions"][KIND] != ("EFFECT_DENY" if named else "EFFECT_ALLOW"):
            raise RuntimeError(f"Cerbos answers {result['actions'][KIND]}, and names {named}")
        return named

    return request_for, judge


@contextmanager
def opa_server(folder: Path, rules: int) -> Iterator[Peer]:
    """Run OPA with so many rules. Raises PeerMissing."""
    program, port = find_opa(), free_port()
    command = [str(program), "run", "--server", f"--addr=127.0.0.1:{port}", "--disable-telemetry", "--log-level=error"]
    with running([*command, str(opa_policy(folder, rules))], port, "OPA") as pid:
        body = json.dumps({"input": ACTION.context}).encode()
        headers = (("Content-Type", "application/json"),)

        def judge(context: Context) -> list[str]:
            content = json.dumps({"input": context}).encode()
            request = urllib.request.Request(f"http://127.0.0.1:{port}{OPA_PATH}", content, dict(headers))
            with urllib.request.urlopen(request, timeout=60) as response:
                found: list[str] = json.load(response)["result"]
            return found

        yield Peer(pid, HttpMethod(port, OPA_PATH, lambda: body, headers), judge)


def cstp_peer(served: Served) -> Peer:
    """Return a server of ours."""

    def judge(context: Context) -> list[str]:
        method = cstp_method(served.grpc, "cstp.checkGuardrails", lambda: params_for(context))
        with dialled(served.grpc) as channel:
            invoke: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method.path)
            answer: Any = cstp_pb2.CheckGuardrailsResponse.FromString(
                invoke(method.request(), metadata=method.metadata, timeout=60)
            )
        return [each.guardrail_id for each in answer.violations]

    return Peer(served.pid, cstp_method(served.grpc, "cstp.checkGuardrails", lambda: params_for(ACTION.context)), judge)


def params_for(context: Context) -> Mapping[str, Any]:
    return {"action": action_to_json(replace(ACTION, context=context))}
