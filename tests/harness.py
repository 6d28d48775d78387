"""A whole CSTP on free ports, and one way to call it over either transport."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from bridge.app import run_bridge as running_bridge
from bridge.upstream import Upstream
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.json_codec import from_json, to_json
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform import config
from cstp_grpc.platform.config import PILLARS
from cstp_grpc.platform.storage.locks import DataDirLock
from cstp_grpc.server.app import App
from cstp_grpc.server.deployment import SINGLE_PROCESS, Deployment
from cstp_grpc.server.interceptors.rate_limits import create_shared_memory
from tests.databases import write_journal
from tests.event_loops import entered_in_thread

TOKENS = {
    "alice": "alice-secret-token",
    "bob": "bob-secret-token",
    "reader": "reader-secret-token",
    "carol": "carol-secret-token",
}
TIMEOUT = 20.0


def settings(data_dir: Path, **overrides: Any) -> config.Settings:
    """Return settings for tests: free ports, no weights, no index, agents alice and bob who may do everything, reader
    with the default permissions, and carol, who may do everything in another tenant. Alice serves all pillars."""
    everything = sorted(Permission)
    tokens = [
        {"name": "alice", "token": TOKENS["alice"], "permissions": everything},
        {"name": "bob", "token": TOKENS["bob"], "permissions": everything},
        {"name": "reader", "token": TOKENS["reader"]},
        {"name": "carol", "token": TOKENS["carol"], "permissions": everything, "tenant": "other"},
    ]
    base: dict[str, Any] = {
        "data_dir": data_dir,
        "grpc": {"port": 0, "drain_seconds": 2},
        "server": {"port": 0},
        "a2a": {"grpc_port": 0},
        "auth": {"tokens": tokens},
        "embedding": {"provider": "lexical"},
        "rate_limits": {"enabled": False},
        # Five rules, which load in a fortieth of the time of all packs.
        "cstp": {"guardrails": {"preset": "default"}},
        "liaison": {"pillars": {pillar: {"agent": "alice"} for pillar in PILLARS}},
    }
    return config.load_settings(None, **config.deep_merge(base, overrides))


def provide_journal(wanted: config.Settings) -> None:
    """Put a migrated journal into a data folder that has none, which is quicker than to have the server make it."""
    path = wanted.data_dir / "journal.db"
    if wanted.storage.url is None and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_journal(path)


@contextmanager
def running(wanted: config.Settings, deployment: Deployment = SINGLE_PROCESS, **options: Any) -> Iterator[App]:
    """Run a server for the length of a block; `options` are further ones of `App`."""
    provide_journal(wanted)
    app = App(wanted, deployment=deployment, **options)
    app.start()
    try:
        yield app
    finally:
        app.stop()


@contextmanager
def running_workers(wanted: config.Settings, number: int) -> Iterator[list[App]]:
    """Run several servers on one data folder for the length of a block, as a supervisor has its workers run."""
    memory = create_shared_memory()
    with ExitStack() as opened:
        opened.callback(os.close, memory)
        opened.enter_context(DataDirLock(wanted.data_dir))
        deployment = Deployment(supervised=True, limits_memory=memory)
        yield [opened.enter_context(running(wanted, deployment)) for _ in range(number)]


@dataclass(frozen=True)
class Peers:
    """Where a bridge is: over HTTP by its URL, over gRPC by `host:port`; and the URL of its metrics, if it has any."""

    url: str
    grpc_target: str
    metrics_url: str | None = None


@contextmanager
def peering(wanted: config.Settings, target: str) -> Iterator[Peers]:
    """Run a bridge to `target` in a thread of its own and say where it is."""
    key = wanted.auth.bridge_key
    upstream = Upstream(
        target,
        wanted.server.grpc_ca_file,
        client_certificate=wanted.server.grpc_client_certificate,
        bridge_key=None if key is None else key.get_secret_value(),
    )
    with entered_in_thread(lambda: running_bridge(wanted, upstream), "bridge") as addresses:
        yield Peers(addresses.url, addresses.grpc or "", addresses.metrics_url)


@contextmanager
def bridging(wanted: config.Settings, target: str) -> Iterator[str]:
    """Run a bridge to `target` in a thread of its own and yield its URL."""
    with peering(wanted, target) as peers:
        yield peers.url


@dataclass(frozen=True)
class Outcome:
    """What a call came to: a result, or an error with its reason, violated fields, details and blocking guardrails."""

    result: dict[str, Any] | None = None
    reason: str | None = None
    message: str = ""
    fields: tuple[str, ...] = ()
    data: Mapping[str, Any] | None = None
    details: Mapping[str, Any] | None = None
    guardrails: tuple[str, ...] = ()


class GrpcCaller:
    """Calls over gRPC with the JSON of the other transport."""

    name = "grpc"

    def __init__(self, target: str) -> None:
        self.target = target
        self.channel = grpc.insecure_channel(target)

    def call(self, method: str, params: Mapping[str, Any], token: str | None = TOKENS["alice"]) -> Outcome:
        rpc = contract_methods()[method]
        invoke = self.channel.unary_unary(
            rpc.path,
            rpc.request.SerializeToString,
            rpc.response.FromString,
        )
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        try:
            return Outcome(to_json(invoke(from_json(params, rpc.request), timeout=TIMEOUT, metadata=metadata)))
        except grpc.RpcError as error:
            return decoded(error)

    def close(self) -> None:
        self.channel.close()


def decoded(error: Any) -> Outcome:
    """Return the parts of a gRPC error."""
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    status = rpc_status.from_call(error)
    assert status is not None, f"no details: {error}"
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    precondition = error_details_pb2.PreconditionFailure()
    for detail in status.details:
        for message in (info, bad, retry, precondition):
            if detail.Is(message.DESCRIPTOR):
                detail.Unpack(message)
    data: dict[str, Any] = dict(info.metadata)
    if retry.HasField("retry_delay"):
        data["retryAfterMs"] = retry.retry_delay.ToMilliseconds()
    return Outcome(
        reason=info.reason,
        message=status.message,
        fields=tuple(v.field for v in bad.field_violations),
        data=data,
        details={key: value for key, value in info.metadata.items() if key != "requestId"},
        guardrails=tuple(v.type for v in precondition.violations),
    )


@dataclass(frozen=True)
class HttpAnswer:
    """What came back for a POST, as it came."""

    status: int
    content_type: str | None
    content: bytes


class JsonRpcCaller:
    """Calls over JSON-RPC."""

    name = "jsonrpc"

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, body: bytes, token: str | None = TOKENS["alice"]) -> HttpAnswer:
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        request = urllib.request.Request(f"{self.url}/cstp", body, headers)
        try:
            answer = urllib.request.urlopen(request, timeout=TIMEOUT)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            return HttpAnswer(answer.status, answer.headers["Content-Type"], answer.read())

    def call(self, method: str, params: Mapping[str, Any], token: str | None = TOKENS["alice"]) -> Outcome:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = json.loads(self.post(json.dumps(body).encode(), token).content)
        if "result" in answer:
            return Outcome(answer["result"])
        error = answer["error"]
        data = error["data"]
        return Outcome(
            reason=data["reason"],
            message=error["message"],
            fields=tuple(v["field"] for v in data.get("violations", []) if "field" in v),
            data=data,
            details=data.get("metadata", {}),
            guardrails=tuple(v["guardrailId"] for v in data.get("violations", []) if "guardrailId" in v),
        )

    def close(self) -> None:
        """There is nothing to close."""
