"""Webhooks of the configuration are notified by real servers."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.enums import Stakes
from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, NullAuditSink
from cstp_grpc.modules.notifications.model import Notice, NoticeEvent, NoticeFormat, WebhookRule
from cstp_grpc.modules.notifications.outbox import NoticeOutbox, NotifyingAuditSink, slack_text
from cstp_grpc.modules.notifications.sql_store import SqlNoticeStore
from cstp_grpc.modules.webhooks.delivery import parse_webhook_url
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from tests.core.audit.kit import tampering
from tests.core.guardrails.rulebooks import content, rule, write
from tests.core.tokens.kit import NOON
from tests.harness import TOKENS, GrpcCaller, running, settings
from tests.modules.webhooks.receiver import Receiver, receiving
from tests.waiting import wait_until

SECRET = "a-secret-of-the-receiver"
HOSTILE = "Deploy <!channel> *now* & <https://evil.example|here>"


def rules_of(folder: Path) -> Path:
    """Write rules that block what names `block`, and ask a person about what names `ask`."""
    ask = rule("ask", 'action.description.contains("ask")', severity="approve")
    return write(folder / "rules.yaml", content([rule("no", 'action.description.contains("block")'), ask]))


def webhook_settings(folder: Path, *webhooks: Mapping[str, Any], **others: Any) -> Settings:
    folder.mkdir(exist_ok=True)
    return settings(
        folder / "data",
        cstp={"guardrails": {"config_path": rules_of(folder)}},
        notifications={"webhooks": [{"any_address": True, **each} for each in webhooks]},
        **others,
    )


@contextmanager
def serving(wanted: Settings) -> Iterator[GrpcCaller]:
    with running(wanted) as app:
        caller = GrpcCaller(app.target)
        try:
            yield caller
        finally:
            caller.close()


def check(caller: GrpcCaller, description: str, **action: Any) -> Mapping[str, Any]:
    outcome = caller.call("cstp.checkGuardrails", {"action": {"description": description, **action}})
    assert outcome.result is not None, outcome
    return outcome.result


def arrived(receiver: Receiver, count: int) -> list[dict[str, Any]]:
    """Wait for as many notices, and return their documents."""
    wait_until(lambda: len(receiver.received) >= count, f"{count} notices arrived")
    return [each.content for each in receiver.received]


def sent_entries(caller: GrpcCaller) -> list[Mapping[str, Any]]:
    outcome = caller.call("cstp.listAuditEntries", {"event": "notification_sent"})
    assert outcome.result is not None
    entries: list[Mapping[str, Any]] = outcome.result["entries"]
    return entries


def test_blocked_actions_of_high_stakes_are_reported_and_signed(tmp_path: Path) -> None:
    with receiving() as receiver:
        hook = {"name": "ops", "url": receiver.url, "secret": SECRET, "categories": ["deployment"]}
        with serving(webhook_settings(tmp_path, hook)) as caller:
            check(caller, "block it", category="deployment", stakes="low")
            check(caller, "block it", category="process", stakes="critical")
            check(caller, "allowed", category="deployment", stakes="high")
            verdict = check(caller, "block this one", category="deployment", stakes="high")
            (document,) = arrived(receiver, 1)
            wait_until(lambda: len(sent_entries(caller)) == 1, "the delivery is on record")
            (entry,) = sent_entries(caller)
    (received,) = receiver.received
    signature = hmac.new(SECRET.encode(), json.dumps(document).encode(), hashlib.sha256).hexdigest()
    assert received.headers["x-cstp-signature"] == f"sha256={signature}"
    assert document.pop("notificationId") == entry["requestId"]
    assert document.pop("at").endswith("Z")
    assert document == {
        "event": "action_blocked",
        "server": "cstp",
        "agent": "alice",
        "action": "block this one",
        "category": "deployment",
        "stakes": "high",
        "guardrails": ["no"],
        "requestId": verdict["checkId"],
    }
    assert (entry["requestingAgent"], entry["action"]) == ("alice", "action_blocked to the webhook ops")


def test_approvals_are_reported_in_the_form_of_slack(tmp_path: Path) -> None:
    with receiving() as receiver:
        hook = {"name": "chat", "url": receiver.url, "format": "slack"}
        with serving(webhook_settings(tmp_path, hook)) as caller:
            request = check(caller, f"ask: {HOSTILE}", stakes="critical")["approval"]["id"]
            (asked,) = arrived(receiver, 1)
            granted = caller.call("cstp.grantApproval", {"id": request}, TOKENS["bob"])
            assert granted.reason is None
            decided = arrived(receiver, 2)[1]
    assert asked | {"text": ""} == {"text": "", "unfurl_links": False, "unfurl_media": False}
    assert asked["text"].startswith(
        "*Approval requested* alice\n> ask:\u200b Deploy &lt;!\u200bchannel&gt; *\u200bnow*\u200b &amp;"
    )
    assert request in asked["text"]
    assert decided["text"].startswith("*Approval granted* by bob\n")


def test_a_notice_survives_the_server_and_is_retried(tmp_path: Path) -> None:
    with receiving() as receiver:
        receiver.statuses = [503]
        wanted = webhook_settings(tmp_path, {"name": "ops", "url": receiver.url})
        with serving(wanted) as caller:
            check(caller, "block it", stakes="high")
            (first,) = arrived(receiver, 1)[:1]
        receiver.statuses = [204]
        count = len(receiver.received)
        with serving(wanted) as caller:
            repeated = arrived(receiver, count + 1)[-1]
            wait_until(lambda: len(sent_entries(caller)) == 1, "the delivery is on record")
    assert repeated == first


def test_private_addresses_must_be_permitted(tmp_path: Path) -> None:
    with receiving() as receiver:
        hook = {"name": "ops", "url": receiver.url, "any_address": False}
        with serving(webhook_settings(tmp_path, hook)) as caller:
            check(caller, "block it", stakes="high")
            wait_until(lambda: len(sent_entries(caller)) == 1, "the notice is given up")
            assert sent_entries(caller)[0]["error"] == "UNAVAILABLE"
    assert receiver.received == []


def test_the_number_of_notices_is_bounded_for_an_agent_and_in_all(tmp_path: Path) -> None:
    with receiving() as receiver:
        hooks: list[dict[str, Any]] = [
            {"name": "few", "url": f"{receiver.url}/few", "max_per_hour": 3},
            {"name": "all", "url": f"{receiver.url}/all"},
        ]
        with serving(webhook_settings(tmp_path, *hooks)) as caller:
            for agent in ("alice", "bob"):
                for number in range(4):
                    action = {"description": f"block {number}", "stakes": "high"}
                    caller.call("cstp.checkGuardrails", {"action": action}, TOKENS[agent])
            arrived(receiver, 11)
    few = [each.content["agent"] for each in receiver.received if each.path == "/few"]
    assert sorted(few) == ["alice", "alice", "bob"]
    assert len(receiver.received) == 11


def test_texts_that_the_trail_does_not_keep_are_not_sent(tmp_path: Path) -> None:
    with receiving() as receiver:
        hook = {"name": "ops", "url": receiver.url}
        with serving(webhook_settings(tmp_path, hook, audit={"judged_content": "nothing"})) as caller:
            check(caller, "block it", stakes="high")
            (document,) = arrived(receiver, 1)
    assert "action" not in document
    assert document["guardrails"] == ["no"]


def test_a_verification_with_findings_is_reported(tmp_path: Path) -> None:
    with receiving() as receiver:
        wanted = webhook_settings(tmp_path, {"name": "ops", "url": receiver.url, "events": ["verification_failed"]})
        with running(wanted) as app, CstpClient(app.target, TOKENS["alice"]) as client:
            client.check_guardrails("block it", stakes="high")
            with closing(open_database(wanted.storage_url, 1)) as database, tampering(database) as connection:
                connection.execute(text("UPDATE audit_entries SET requesting_agent = 'bob'"))
            list(client.verify_audit(resume=False))
            (document,) = arrived(receiver, 1)
    assert (document["event"], document["agent"], document["findings"]) == ("verification_failed", "alice", 1)
    assert document["finding"]


def test_an_invalid_url_stops_the_start(tmp_path: Path) -> None:
    with (
        pytest.raises(ConfigError, match=r"notifications\.webhooks\.0\.url: is not a plain http"),
        serving(webhook_settings(tmp_path, {"name": "ops", "url": "https://user@example.com/"})),
    ):
        pass


@pytest.mark.contract("SqlNoticeStore.add")
def test_a_notice_is_taken_as_it_was_added(database: Database, writer: GroupCommitWriter) -> None:
    store = SqlNoticeStore(database)
    notice = Notice("n-1", "ops", NoticeEvent.ACTION_BLOCKED, "alice", {"text": "„a“ \ud83d"}, NOON, NOON)
    writer.run(lambda unit_of_work: store.add(unit_of_work, [notice]))
    (taken,) = writer.run(lambda unit_of_work: store.take_due(unit_of_work, NOON, NOON, 10))
    assert taken == notice


def test_a_failed_verification_is_reported(database: Database, writer: GroupCommitWriter) -> None:
    address = parse_webhook_url("https://hooks.example.com/a")
    assert address is not None
    hook = WebhookRule(
        *("ops", address, NoticeFormat.SLACK, frozenset(NoticeEvent), frozenset(Stakes), frozenset(), None, False, 9)
    )
    store = SqlNoticeStore(database)
    outbox = NoticeOutbox(store, [hook], lambda: NOON, "cstp", keeps_text=False, wake=lambda: None)
    sink = NotifyingAuditSink(NullAuditSink(), outbox, writer)
    sink.record(AuditEntry(NOON, AuditEvent.VERIFICATION_FAILED, "carol", "r-1", action="entry 7 was changed", count=2))
    (notice,) = writer.run(lambda unit_of_work: store.take_due(unit_of_work, NOON, NOON, 10))
    assert (notice.content["finding"], notice.content["findings"]) == ("entry 7 was changed", 2)
    assert slack_text(notice) == "*Verification of the audit trail failed* run by carol\n> entry 7 was changed"


@pytest.mark.parametrize(
    "markup", ["@all", "#general", "[Approve](", "![logo](", "https://evil", ":fire:", "`code`", "~~no~~", "| a | b |"]
)
def test_no_text_of_an_agent_is_markup_in_markdown(markup: str) -> None:
    notice = Notice("n-1", "ops", NoticeEvent.ACTION_BLOCKED, "alice", {"action": f"Do {markup} it"}, NOON, NOON)
    text = slack_text(notice)
    assert markup not in text
    assert text.replace("\u200b", "") == f"*Action blocked* alice\n> Do {markup} it"
