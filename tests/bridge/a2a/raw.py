"""Raw HTTP exchanges with a bridge, and a scripted server that keeps tasks behind it."""

from __future__ import annotations

import http.client
import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from cstp_grpc.gen.cstp.v1 import access_pb2, cstp_pb2, tasks_pb2
from tests.bridge.support import JSON, TIMEOUT, Answer, Client, Scripted
from tests.harness import TOKENS, Peers

URI = "urn:cstp:extension:v1"
EXTENSION = {"A2A-Extensions": URI}
A2A_DOMAIN = "a2a-protocol.org"


@dataclass(frozen=True)
class Raw:
    """Sends single requests as somebody, in a version of A2A."""

    client: Client

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        who: str | None = "alice",
        version: str | None = "1.0",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send bytes and text as they are, and anything else as JSON."""
        content, given = encode_request(body, who, version, headers)
        return self.client.request(method, path, content, given)

    def post(self, body: Any, path: str = "/a2a", **told: Any) -> Answer:
        """Post a JSON-RPC body."""
        return self.send("POST", path, body, **told)

    def call(self, method: str, params: Any = None, **told: Any) -> Any:
        """Return the response to a call with the id 1."""
        return self.post(call(method, params), **told).json

    @contextmanager
    def streaming(
        self, body: Any, path: str = "/a2a", version: str | None = "1.0", *, method: str = "POST", **told: Any
    ) -> Iterator[Stream]:
        """Yield the stream that a body is answered with; `told` is as for `send`, of nobody by default."""
        connection = http.client.HTTPConnection(self.client.host, self.client.port, timeout=TIMEOUT)
        content, headers = encode_request(body, version=version, **{"who": None, **told})
        try:
            connection.request(method, path, content, headers)
            yield Stream(connection.getresponse())
        finally:
            connection.close()


@dataclass(frozen=True)
class Stream:
    """Server-sent events as they come."""

    response: http.client.HTTPResponse

    def next(self) -> Any:
        """Return the next event, None at the end."""
        data = None
        while line := self.response.readline():
            if line.startswith(b"data: "):
                data = line.removeprefix(b"data: ")
            elif data is not None and not line.strip(b"\r\n"):
                return json.loads(data)
        return None

    def whole(self) -> Any:
        """Return the JSON that came instead of a stream."""
        return json.loads(self.response.read())


def encode_request(
    body: Any, who: str | None, version: str | None, headers: Mapping[str, str] | None = None
) -> tuple[bytes | None, dict[str, str]]:
    """Return the content and the headers of a request by an agent, or by nobody, in a version of A2A."""
    content = body if body is None or isinstance(body, bytes) else to_bytes(body)
    given = {"Content-Type": JSON} if body is not None else {}
    if who is not None:
        given["Authorization"] = f"Bearer {TOKENS.get(who, who)}"
    if version is not None:
        given["A2A-Version"] = version
    return content, {**given, **(headers or {})}


def to_bytes(body: Any) -> bytes:
    """Return text as it is, and anything else as JSON."""
    return (body if isinstance(body, str) else json.dumps(body)).encode()


def call(method: str, params: Any = None, **members: Any) -> dict[str, Any]:
    """Return a JSON-RPC call with the id 1."""
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {} if params is None else params, **members}


def saying(*parts: Any, **members: Any) -> dict[str, Any]:
    """Return the params of 1.0 that send text and data."""
    found = [{"text": part} if isinstance(part, str) else {"data": part} for part in parts]
    return {"message": {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": found, **members}}


def saying_in_0_3(*parts: Any, **members: Any) -> dict[str, Any]:
    """Return the params of 0.3 that send text and data."""
    found = [{"kind": "text", "text": p} if isinstance(p, str) else {"kind": "data", "data": p} for p in parts]
    return {"message": {"kind": "message", "messageId": str(uuid.uuid4()), "role": "user", "parts": found, **members}}


def events_of(answer: Answer) -> list[Any]:
    """Return the events of a whole stream."""
    assert answer.headers.get_content_type() == "text/event-stream", answer.body
    lines = answer.body.split(b"\n")
    return [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]


def info_of(details: list[dict[str, Any]]) -> tuple[str, str]:
    """Return the domain and the reason of an error, which come first of its details."""
    assert details[0]["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert details[0]["metadata"]["requestId"]
    return details[0]["domain"], details[0]["reason"]


def fields_of(details: list[dict[str, Any]]) -> list[str]:
    """Return which fields an error names."""
    bad = [detail for detail in details if detail["@type"] == "type.googleapis.com/google.rpc.BadRequest"]
    assert all(violation["description"] for detail in bad for violation in detail["fieldViolations"])
    return [violation.get("field", "") for detail in bad for violation in detail["fieldViolations"]]


def raw_client(peers: Peers) -> Raw:
    """Return a client of a bridge."""
    host, _, port = peers.url.removeprefix("http://").rpartition(":")
    return Raw(Client(host, int(port)))


@dataclass
class Core:
    """A server that knows everybody, keeps the last task and is at an announcement until it is told to go on."""

    server: Scripted
    begun: threading.Event = field(default_factory=threading.Event)
    go_on: threading.Event = field(default_factory=threading.Event)
    kept: list[tasks_pb2.Task] = field(default_factory=list)

    def play(self) -> None:
        """Teach the server."""
        self.server.plays |= {
            "cstp.getAccess": lambda request, context: access_pb2.GetAccessResponse(),
            "cstp.announceIntent": self._announce,
            "cstp.saveTask": self._save,
            "cstp.findTask": lambda request, context: tasks_pb2.FindTaskResponse(id=str(uuid.uuid4())),
            "cstp.getTask": lambda request, context: tasks_pb2.GetTaskResponse(task=self.kept[0]),
        }

    def _announce(self, request: Any, context: grpc.ServicerContext) -> cstp_pb2.AnnounceIntentResponse:
        self.begun.set()
        self.go_on.wait(TIMEOUT)
        return cstp_pb2.AnnounceIntentResponse()

    def _save(self, request: tasks_pb2.SaveTaskRequest, context: grpc.ServicerContext) -> tasks_pb2.SaveTaskResponse:
        task = tasks_pb2.Task()
        task.CopyFrom(request.task)
        task.version = request.version + 1
        self.kept[:] = [task]
        return tasks_pb2.SaveTaskResponse(version=task.version)
