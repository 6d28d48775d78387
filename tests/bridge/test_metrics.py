"""What a bridge counts, and how Prometheus fetches it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest
from a2a.types import a2a_pb2

from cstp_grpc.common.version import VERSION
from cstp_grpc.gen.cstp.v1 import cstp_pb2
from cstp_grpc.platform.config import A2aSettings, GrpcSettings, MetricsSettings, ServerSettings, Settings
from tests.bridge.a2a.raw import Raw
from tests.bridge.support import JSON, TIMEOUT, Client, Scripted, bare, call, fail, serving
from tests.harness import Peers, peering
from tests.platform.telemetry.scraping import Scraped, fetch_text, scrape
from tests.waiting import wait_until

CHECK = "cstp.checkGuardrails"
SCRAPER = "a-token-of-prometheus"
COUNT = "cstp_bridge_call_seconds_count"
REFUSALS = "cstp_bridge_refusals_total"
Labels = dict[str, str]


@dataclass(frozen=True)
class WatchedBridge:
    """A bridge whose metrics are looked at, and who calls it."""

    peers: Peers
    client: Client

    def scrape(self) -> Scraped:
        return scrape(self.peers.metrics_url, SCRAPER)

    def growth(self, work: Callable[[], object], name: str, **labels: str) -> float:
        """Return by how much a figure grows while some work is done; a call is counted once it is answered."""
        before = self.scrape().value(name, **labels)
        work()
        wait_until(lambda: self.scrape().value("cstp_bridge_calls_in_progress") == 0, "all is answered")
        return self.scrape().value(name, **labels) - before


def bridge_settings(**metrics: Any) -> Settings:
    return Settings(
        server=ServerSettings(port=0, max_batch=5, max_body_bytes=20_000, timeout_seconds=15),
        a2a=A2aSettings(grpc_port=0),
        grpc=GrpcSettings(drain_seconds=2),
        metrics=MetricsSettings(bridge_port=0, **metrics),
    )


@pytest.fixture(scope="module")
def watched_bridge(shared: tuple[Scripted, str]) -> Iterator[WatchedBridge]:
    with peering(bridge_settings(token=SCRAPER), shared[1]) as peers:
        host, _, port = peers.url.removeprefix("http://").rpartition(":")
        yield WatchedBridge(peers, Client(host, int(port)))


@pytest.fixture
def watched(watched_bridge: WatchedBridge, server: Scripted) -> WatchedBridge:
    """The bridge, before a server that answers as at first."""
    return watched_bridge


def post_raw(watched: WatchedBridge, path: str, body: Any, **told: Any) -> None:
    Raw(watched.client).post(body, path, **told)


@pytest.mark.parametrize(
    ("send", "labels"),
    [
        (
            lambda watched: watched.client.post(call(CHECK)),
            {"surface": "jsonrpc", "method": CHECK, "status_class": "2xx"},
        ),
        (
            lambda watched: watched.client.post([call(CHECK), call("cstp.unknown")]),
            {"surface": "jsonrpc", "method": "batch", "status_class": "2xx"},
        ),
        (
            lambda watched: watched.client.post(call("cstp.zebra")),
            {"surface": "jsonrpc", "method": "unknown", "status_class": "4xx"},
        ),
        (
            lambda watched: watched.client.post("{"),
            {"surface": "jsonrpc", "method": "unknown", "status_class": "4xx"},
        ),
        (
            lambda watched: watched.client.get("/decisions/events", zebra="1"),
            {"surface": "events", "method": "cstp.watchDecisions", "status_class": "4xx"},
        ),
        (
            lambda watched: watched.client.get("/.well-known/agent-card.json", A2A_Version="1.0"),
            {"surface": "agent_card", "status_class": "2xx"},
        ),
        (
            lambda watched: watched.client.get("/.well-known/agent-card.json", Host="?"),
            {"surface": "agent_card", "status_class": "4xx"},
        ),
        (
            lambda watched: post_raw(watched, "/a2a", call(CHECK)),
            {"surface": "a2a_jsonrpc", "method": CHECK, "status_class": "4xx"},
        ),
        (
            lambda watched: post_raw(watched, "/a2a", call("GetTask", {"id": "t-1"}), version="7.0"),
            {"surface": "a2a_jsonrpc", "method": "GetTask", "status_class": "4xx"},
        ),
        (
            lambda watched: post_raw(watched, "/a2a/v1/message:send", {}),
            {"surface": "a2a_http", "method": "SendMessage", "status_class": "4xx"},
        ),
        (
            lambda watched: watched.client.get("/a2a/zebra"),
            {"surface": "a2a_http", "method": "unknown", "status_class": "4xx"},
        ),
        (lambda watched: watched.client.get("/health"), {"surface": "other", "status_class": "2xx"}),
        (lambda watched: watched.client.get("/zebra"), {"surface": "other", "status_class": "4xx"}),
    ],
)
def test_a_request_is_counted_by_surface_method_and_status(
    watched: WatchedBridge, send: Callable[[WatchedBridge], object], labels: Labels
) -> None:
    assert watched.growth(lambda: send(watched), COUNT) == 1
    assert watched.growth(lambda: send(watched), COUNT, **labels) == 1
    assert "zebra" not in fetch_text(watched.peers.metrics_url, SCRAPER)


@pytest.mark.parametrize(
    ("code", "status_class"),
    [(grpc.StatusCode.UNAVAILABLE, "5xx"), (grpc.StatusCode.NOT_FOUND, "4xx"), (grpc.StatusCode.INTERNAL, "5xx")],
)
def test_what_the_server_refuses_is_counted_as_what_it_means(
    watched: WatchedBridge, server: Scripted, code: grpc.StatusCode, status_class: str
) -> None:
    server.plays[CHECK] = bare(code)
    refusals = watched.scrape().value(REFUSALS)
    labels = {"surface": "jsonrpc", "method": CHECK, "status_class": status_class}
    assert watched.growth(lambda: watched.client.post(call(CHECK)), COUNT, **labels) == 1
    assert watched.scrape().value(REFUSALS) == refusals


@pytest.mark.parametrize(
    ("send", "surface", "reason"),
    [
        (lambda watched: watched.client.post("{"), "jsonrpc", "PARSE_ERROR"),
        (lambda watched: watched.client.post([]), "jsonrpc", "INVALID_REQUEST"),
        (lambda watched: watched.client.post([1, call(CHECK)]), "jsonrpc", "INVALID_REQUEST"),
        (lambda watched: watched.client.post(call("cstp.zebra")), "jsonrpc", "METHOD_NOT_FOUND"),
        (lambda watched: watched.client.post(b" " * 30_000), "jsonrpc", "BODY_TOO_LARGE"),
        (lambda watched: watched.client.post("{}", {"Content-Type": "text/x"}), "jsonrpc", "UNSUPPORTED_MEDIA_TYPE"),
        (lambda watched: watched.client.get("/decisions/events?minConfidence=x"), "events", "INVALID_ARGUMENT"),
        (lambda watched: post_raw(watched, "/a2a", "{"), "a2a_jsonrpc", "JSON_PARSE"),
        (lambda watched: post_raw(watched, "/a2a", b" " * 30_000), "a2a_jsonrpc", "BODY_TOO_LARGE"),
        (lambda watched: post_raw(watched, "/a2a/v1/message:send", b" " * 30_000), "a2a_http", "BODY_TOO_LARGE"),
        (lambda watched: post_raw(watched, "/a2a/v1/message:send", {}), "a2a_http", "INVALID_PARAMS"),
    ],
)
def test_what_the_bridge_refuses_is_counted_by_reason(
    watched: WatchedBridge, send: Callable[[WatchedBridge], object], surface: str, reason: str
) -> None:
    assert watched.growth(lambda: send(watched), REFUSALS, surface=surface, reason=reason) == 1


def test_a_refusal_that_a_stranger_gets_from_the_server_is_none_of_the_bridge(
    watched: WatchedBridge, server: Scripted
) -> None:
    server.plays["cstp.getAccess"] = fail(grpc.StatusCode.UNAUTHENTICATED, "AUTHENTICATION_REQUIRED")
    assert watched.growth(lambda: watched.client.post(call("cstp.zebra")), REFUSALS) == 0


def call_grpc(watched: WatchedBridge, rpc: str, request: bytes, version: str = "1.0") -> grpc.StatusCode:
    """Call A2A over gRPC and return the status."""
    with grpc.insecure_channel(watched.peers.grpc_target) as channel:
        invoke: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(f"/lf.a2a.v1.A2AService/{rpc}")
        with pytest.raises(grpc.RpcError) as caught:
            invoke(request, timeout=TIMEOUT, metadata=(("a2a-version", version),))
    code = caught.value.code()  # type: ignore[attr-defined] # a call, too
    assert isinstance(code, grpc.StatusCode)
    return code


def test_calls_of_a2a_over_grpc_are_counted(watched: WatchedBridge) -> None:
    request = a2a_pb2.GetTaskRequest(id="t-1").SerializeToString()
    labels = {"surface": "a2a_grpc", "method": "GetTask", "status_class": "4xx"}
    assert watched.growth(lambda: call_grpc(watched, "GetTask", request, "0.3"), COUNT, **labels) == 1
    refused = {"surface": "a2a_grpc", "reason": "VERSION_NOT_SUPPORTED"}
    assert watched.growth(lambda: call_grpc(watched, "GetTask", request, "0.3"), REFUSALS, **refused) == 1
    unknown = {"surface": "a2a_grpc", "method": "unknown", "status_class": "4xx"}
    assert watched.growth(lambda: call_grpc(watched, "Zebra", b""), COUNT, **unknown) == 1


def test_a_call_is_in_progress_until_it_is_answered(watched: WatchedBridge, server: Scripted) -> None:
    go_on = threading.Event()

    def wait(request: Any, context: grpc.ServicerContext) -> cstp_pb2.CheckGuardrailsResponse:
        assert go_on.wait(TIMEOUT)
        return cstp_pb2.CheckGuardrailsResponse(allowed=True)

    server.plays[CHECK] = wait
    calling = threading.Thread(target=watched.client.post, args=(call(CHECK),))
    calling.start()
    wait_until(lambda: watched.scrape().value("cstp_bridge_calls_in_progress", transport="http") == 1, "it is")
    assert watched.scrape().value("cstp_bridge_connections") >= 1
    go_on.set()
    calling.join()
    wait_until(lambda: watched.scrape().value("cstp_bridge_calls_in_progress") == 0, "it is answered")


def test_durations_are_finer_than_milliseconds(watched: WatchedBridge) -> None:
    watched.client.get("/nowhere")
    milliseconds = 1000 * watched.scrape().value("cstp_bridge_call_seconds_sum")
    assert abs(milliseconds - round(milliseconds)) > 1e-5


def test_a_request_that_is_no_http_is_not_counted(watched: WatchedBridge) -> None:
    def send() -> None:
        with socket.create_connection((watched.client.host, watched.client.port), TIMEOUT) as connection:
            connection.sendall(b"no HTTP\r\n\r\n")
            assert b"400" in b"".join(iter(lambda: connection.recv(1000), b""))

    assert watched.growth(send, COUNT) == 0


def test_the_process_is_told(watched: WatchedBridge) -> None:
    scraped = watched.scrape()
    assert scraped.labels("cstp_build_info", "version") == {VERSION}
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_python_threads"):
        assert scraped.value(name) > 0, name
    assert scraped.value("cstp_unreadable_measures") == 0


def test_the_connection_to_the_server_is_told(free_port: int) -> None:
    scripted = Scripted()
    scripted.reset()
    with peering(bridge_settings(), f"127.0.0.1:{free_port}") as peers:
        client = Client("127.0.0.1", int(peers.url.rpartition(":")[2]))

        def state_is(name: str) -> bool:
            client.request(
                "POST", "/cstp", b'{"jsonrpc":"2.0","id":1,"method":"cstp.getAccess"}', {"Content-Type": JSON}
            )
            return scrape(peers.metrics_url).value("cstp_bridge_upstream_state", state=name) == 1

        assert scrape(peers.metrics_url).value("cstp_bridge_upstream_state", state="idle") == 1
        wait_until(lambda: state_is("transient_failure"), "there is no server")
        with serving(scripted, free_port):
            wait_until(lambda: state_is("ready"), "there is one")
        wait_until(lambda: state_is("transient_failure"), "there is none again")
        with serving(scripted, free_port):
            wait_until(lambda: state_is("ready"), "there is one again")
