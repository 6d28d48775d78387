"""What a server counts, and how Prometheus fetches it."""

from __future__ import annotations

import re
import socket
import ssl
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pydantic import ValidationError

from cstp_grpc.contract.errors import CannotListen
from cstp_grpc.platform.config import MetricsSettings
from cstp_grpc.server.app import App
from tests.certificates import Certificate
from tests.core.guardrails.rulebooks import content, rule, write
from tests.harness import GrpcCaller, running, settings
from tests.modules.federation.agents import agent_settings, peer
from tests.platform.telemetry.scraping import Scraped, fetch_text, scrape
from tests.waiting import wait_until

RULES = [
    rule("no-prod", "context.production && !context.reviewed"),
    rule("ask-first", "context.risky", "approve"),
    rule("be-careful", "context.careful", "warn"),
    rule("tried-only", "context.production", enforcement="dryrun"),
    rule("unreadable", "context.level > 3.0"),
]
INPUTS = {
    **{name: {"type": "bool", "default": False} for name in ("production", "reviewed", "risky", "careful")},
    "level": {"type": "number"},
}
CHECK = "cstp.checkGuardrails"


@dataclass(frozen=True)
class Watched:
    """A server whose metrics are looked at, and who calls it."""

    app: App
    caller: GrpcCaller
    rules: Path

    def scrape(self) -> Scraped:
        return scrape(self.app.metrics_url)

    def call(self, method: str, token: str | None = "alice-secret-token", **params: Any) -> str | None:
        """Call a method and return the reason of its error."""
        return self.caller.call(method, params, token).reason

    def check(self, **context: object) -> None:
        action = {"description": "Deploy", "context": {"level": 1, **context}}
        assert self.call(CHECK, action=action) is None

    def growth(self, work: Callable[[], object], name: str, **labels: str) -> float:
        """Return by how much a figure grows while some work is done."""
        before = self.scrape().value(name, **labels)
        work()
        return self.scrape().value(name, **labels) - before


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """A server with rules that fire, and a peer that is not there."""
    folder = tmp_path_factory.mktemp("watched")
    rules = write(folder / "rules.yaml", content(RULES, INPUTS))
    wanted = settings(
        folder / "data",
        metrics={"port": 0, "agent_classes": {"crew": ["bo*"]}},
        cstp={"guardrails": {"config_path": str(rules), "unknown_action": "allow"}},
        federation={"callbacks": {"allow": ["https://agents.example.com/"]}},
    )
    with running(wanted) as app:
        caller = GrpcCaller(app.target)
        yield Watched(app, caller, rules)
        caller.close()


def test_calls_are_counted_by_method_class_of_agent_and_status(watched: Watched) -> None:
    name = "cstp_call_seconds_count"
    before = watched.scrape()
    watched.check()
    assert watched.call(CHECK, "bob-secret-token", action={"description": "Deploy", "context": {"level": 1}}) is None
    assert watched.call(CHECK, "wrong-secret-token", action={"description": "Deploy"}) == "AUTHENTICATION_REQUIRED"
    assert watched.call(CHECK, action={}) == "INVALID_ARGUMENT"
    after = watched.scrape()
    expected = [
        ("agent", "OK"),
        ("crew", "OK"),
        ("unauthenticated", "UNAUTHENTICATED"),
        ("agent", "INVALID_ARGUMENT"),
    ]
    for agent_class, status in expected:
        labels = {"method": CHECK, "agent_class": agent_class, "status": status}
        assert after.value(name, **labels) - before.value(name, **labels) == 1, labels
    refused = "cstp_call_errors_total"
    assert after.value(refused, method=CHECK, reason="INVALID_ARGUMENT") > 0
    assert after.value(refused, method=CHECK, reason="AUTHENTICATION_REQUIRED") > 0
    assert after.value("cstp_calls_in_progress") == 0


def test_a_stream_is_open_until_it_is_canceled(watched: Watched) -> None:
    from cstp_grpc.contract.methods import contract_methods

    method = contract_methods()["cstp.watchDecisions"]
    metadata = (("authorization", "Bearer alice-secret-token"),)
    call = watched.caller.channel.unary_stream(
        method.path, method.request.SerializeToString, method.response.FromString
    )(method.request(), metadata=metadata, timeout=20)
    next(iter(call.initial_metadata()))
    wait_until(lambda: watched.scrape().value("cstp_response_streams_open") == 1, "it is open")
    wait_until(lambda: watched.scrape().value("cstp_watchers", kind="decisions") == 1, "it watches")
    call.cancel()
    wait_until(lambda: watched.scrape().value("cstp_watchers", kind="decisions") == 0, "it watches no more")
    labels = {"method": "cstp.watchDecisions", "status": "CANCELLED"}
    wait_until(lambda: watched.scrape().value("cstp_call_seconds_count", **labels) == 1, "it has ended")


@pytest.mark.parametrize(
    ("context", "verdict", "fired"),
    [
        ({}, "allowed", []),
        ({"careful": True}, "allowed", [("be-careful", "warn")]),
        ({"risky": True}, "approval", [("ask-first", "approve")]),
        ({"production": True}, "blocked", [("no-prod", "block"), ("tried-only", "dryrun")]),
    ],
)
def test_verdicts_and_what_fired_are_counted(
    watched: Watched, context: dict[str, object], verdict: str, fired: list[tuple[str, str]]
) -> None:
    before = watched.scrape()
    watched.check(**context)
    after = watched.scrape()
    (version,) = after.labels("cstp_rule_set_info", "rule_set")
    counted = "cstp_guardrail_verdicts_total"
    assert after.value(counted, verdict=verdict, rule_set=version) == before.value(counted, verdict=verdict) + 1
    grown = {
        (name, effect)
        for name in after.labels("cstp_guardrail_firings_total", "rule")
        for effect in after.labels("cstp_guardrail_firings_total", "effect")
        if after.value("cstp_guardrail_firings_total", rule=name, effect=effect)
        > before.value("cstp_guardrail_firings_total", rule=name, effect=effect)
    }
    assert grown == set(fired)


def test_a_rule_that_cannot_be_evaluated_is_counted_as_such(watched: Watched) -> None:
    def check_without_level() -> None:
        assert watched.call(CHECK, action={"description": "Deploy"}) is None

    assert watched.growth(check_without_level, "cstp_guardrail_errors_total", rule="unreadable") == 1


def test_what_cannot_be_judged_is_counted(watched: Watched) -> None:
    def check_too_long() -> None:
        watched.call(CHECK, action={"description": "Deploy", "context": {"x": "x" * 200_001}})

    assert watched.growth(check_too_long, "cstp_guardrail_judgement_failures_total") == 1


def test_searches_are_counted_by_their_plan(watched: Watched) -> None:
    assert watched.call("cstp.recordDecision", decision={"title": "Use a queue for mail"}) is None

    def query() -> None:
        assert watched.call("cstp.queryDecisions", query="queue for mail") is None

    before = watched.scrape()
    query()
    between = watched.scrape()
    query()
    after = watched.scrape()
    plans = "cstp_search_plans_total"
    assert between.value(plans, plan="exact") > before.value(plans, plan="exact")
    assert after.value(plans, plan="kept") == between.value(plans, plan="kept") + 1
    assert between.value("cstp_search_scored_rows_sum") > before.value("cstp_search_scored_rows_sum")
    assert after.value("cstp_matrix_rows") >= 1
    assert between.value("cstp_embedded_texts_total", source="computed") > before.value(
        "cstp_embedded_texts_total", source="computed"
    )
    assert after.value("cstp_embedding_texts_in_progress") == 0


def test_writes_are_measured(watched: Watched) -> None:
    before = watched.scrape()
    watched.check()
    after = watched.scrape()
    for name in ("cstp_transaction_jobs_sum", "cstp_commit_seconds_count", "cstp_audit_write_seconds_count"):
        assert after.value(name) > before.value(name), name
    assert 0 < after.value("cstp_commit_seconds_sum") <= after.value("cstp_transaction_seconds_sum")
    assert after.value("cstp_writes_waiting") == 0
    assert after.value("cstp_transaction_failures_total") == 0


def test_the_state_of_rooms_and_process_is_told(watched: Watched) -> None:
    def open_session() -> None:
        assert watched.call("liaison.openSession", user_id="u-1", context={"a": 1}) is None

    assert watched.growth(open_session, "cstp_chat_sessions_active") == 1
    scraped = watched.scrape()
    for kind in ("callbacks", "push_notifications", "shares"):
        assert kind in scraped.labels("cstp_outbox_items", "kind")
        assert scraped.value("cstp_outbox_oldest_seconds", kind=kind) == 0
    assert scraped.labels("cstp_watchers", "kind") == {"decisions", "intents", "approvals", "liaison", "audit"}
    assert scraped.value("cstp_guardrails_in_force") == len(RULES)
    assert scraped.value("cstp_unreadable_measures") == 0
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_python_threads"):
        assert scraped.value(name) > 0, name


def test_loads_of_rulebooks_are_counted(watched: Watched) -> None:
    text = watched.rules.read_text()
    version = watched.scrape().labels("cstp_rule_set_info", "rule_set")
    watched.rules.write_text("guardrails: [")
    watched.app.reload()
    wait_until(lambda: watched.scrape().value("cstp_rulebooks_up_to_date") == 0, "they cannot be loaded")
    assert watched.scrape().value("cstp_rulebook_loads_total", result="failed") == 1
    watched.rules.write_text(text.replace('"version": "1"', '"version": "2"'))
    watched.app.reload()
    wait_until(lambda: watched.scrape().value("cstp_rulebooks_up_to_date") == 1, "they are loaded")
    assert watched.scrape().value("cstp_rulebook_loads_total", result="replaced") == 1
    assert watched.scrape().labels("cstp_rule_set_info", "rule_set").isdisjoint(version)


def test_no_label_holds_what_callers_say(watched: Watched) -> None:
    """Neither agents nor identifiers nor texts: each would be a series of its own."""
    secret = "zebra-identifier"
    watched.call(CHECK, action={"description": secret, "category": secret, "context": {"level": 1, secret: secret}})
    watched.call("cstp.announceIntent", intent=secret, correlationId=secret, agent={"id": secret})
    watched.call("cstp.queryDecisions", query=secret)
    text = fetch_text(watched.app.metrics_url)
    assert "zebra" not in text
    assert "alice" not in text
    assert len(text.splitlines()) < 3000


def test_prometheus_gets_the_format_that_it_asks_for(watched: Watched) -> None:
    plain = fetch_text(watched.app.metrics_url, accept="text/plain;version=0.0.4")
    assert "# TYPE cstp_call_seconds histogram" in plain
    assert not re.search(r"_created\b", plain)
    assert not plain.endswith("# EOF\n")
    assert fetch_text(watched.app.metrics_url).endswith("# EOF\n")


def test_peers_are_measured(tmp_path: Path) -> None:
    with ExitStack() as opened:
        b = opened.enter_context(running(agent_settings(tmp_path / "b", "b")))
        peers = [peer("b", f"grpc://{b.target}"), peer("gone", "grpc://127.0.0.1:1")]
        wanted = agent_settings(tmp_path / "a", "a", peers=peers, breaker_failures=1)
        wanted = wanted.model_copy(update={"metrics": MetricsSettings(port=0)})
        app = opened.enter_context(running(wanted))
        caller = GrpcCaller(app.target)
        opened.callback(caller.close)
        caller.call(CHECK, {"action": {"description": "Deploy"}, "scope": "federated"})
        scraped = scrape(app.metrics_url)
    assert scraped.value("cstp_peer_call_seconds_count", peer="b", status="answered") == 1
    assert scraped.value("cstp_peer_call_seconds_count", peer="gone", status="unreachable") == 1
    assert scraped.value("cstp_peer_breaker_state", peer="gone", state="open") == 1
    assert scraped.value("cstp_peer_breaker_state", peer="b", state="closed") == 1


def test_metrics_need_the_token_that_is_set_and_speak_tls(tmp_path: Path, certificate: Certificate) -> None:
    metrics = {"port": 0, "host": "localhost", "token": "scraper-token", "tls": certificate.settings}
    trusting = ssl.create_default_context(cadata=certificate.authority.decode())
    with running(settings(tmp_path, metrics=metrics)) as app:
        assert app.metrics_url is not None
        url = app.metrics_url.replace("127.0.0.1", "localhost").replace("[::1]", "localhost")
        assert url.startswith("https://")
        for token in (None, "another-token"):
            with pytest.raises(urllib.error.HTTPError) as raised:
                fetch_text(url, token, context=trusting)
            assert (raised.value.code, raised.value.read()) == (401, b"401: Unauthorized\n")
            raised.value.close()
            assert raised.value.headers["Strict-Transport-Security"] == "max-age=31536000"
        assert "cstp_build_info" in fetch_text(url, "scraper-token", context=trusting)


def test_nothing_of_a_malformed_request_for_metrics_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"), running(settings(tmp_path, metrics={"port": 0})) as app:
        address = urlsplit(app.metrics_url or "")
        with socket.create_connection((address.hostname, address.port), 10) as connection:
            connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a-scraper\x01\r\n\r\n")
            assert b"400" in b"".join(iter(lambda: connection.recv(1000), b""))
    assert "a-scraper" not in caplog.text


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        app = App(settings(tmp_path, metrics={"port": taken.getsockname()[1]}))
        with pytest.raises(CannotListen, match=r"Set metrics\.port to another"):
            app.start()
        app.stop()


def test_metrics_for_others_need_a_token() -> None:
    with pytest.raises(ValidationError, match="token must be given"):
        MetricsSettings(port=9464, host="0.0.0.0")
    exposed = {"port": 9464, "host": "0.0.0.0"}
    assert MetricsSettings.model_validate({**exposed, "token": "scraper-token-of-24-char"}).port == 9464
    with pytest.raises(ValidationError, match="at least 24 characters"):
        MetricsSettings.model_validate({**exposed, "token": "scraper-token-of-23-cha"})
    tls = {"certificate": "c.pem", "key": "k.pem", "client_ca": "ca.pem"}
    assert MetricsSettings.model_validate({**exposed, "tls": {**tls, "client_certificates": "required"}}).port == 9464
    with pytest.raises(ValidationError, match="token must be given"):
        MetricsSettings.model_validate({**exposed, "tls": {**tls, "client_certificates": "optional"}})
