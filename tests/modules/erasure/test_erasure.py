"""Erasing an agent: nothing of what it said is left in any table, and the audit trail still verifies."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import insert, select

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile, TrustedKeys
from cstp_grpc.core.audit.checkpoints import KEY_FILE
from cstp_grpc.modules.erasure.sql_store import SqlAgentRecordStore
from cstp_grpc.platform.storage.database import Database, open_database
from cstp_grpc.platform.storage.writer import GroupCommitWriter
from cstp_grpc.server.maintenance.journal_tables import journal_tables
from tests.cli.conftest import run_command
from tests.core.audit.kit import verify
from tests.harness import TOKENS, running, settings
from tests.server.maintenance.test_copy import example_row

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)

ERASED = {
    *("decisions", "review_deadlines", "decision_reviews", "former_contents", "deleted_decisions", "decision_tags"),
    *("decision_links", "suspended_links", "decision_vectors", "decision_terms", "prepared_vectors"),
    *("intents", "shared_intents", "approvals", "tasks", "push_configs", "task_notifications"),
    *("callbacks", "citations", "notices", "audit_entries", "thoughts"),
}
"""The tables from which an erasure removes what is an agent's."""
KEPT = {
    "shared_intent_changes": "has names alone, for a day, by which servers forget intents",
    "outbox": "has the identifier of the decision that changed last",
    "journal_identity": "has nothing of agents",
    "agent_tokens": "is administered by its own means, with no content of the agent",
    "audit_guardrails": "has the names of rules",
    "audit_chains": "has nothing of agents",
    "audit_checkpoints": "has nothing of agents",
    "audit_checkpoint_heads": "has nothing of agents",
    "audit_segments": "has nothing of agents",
    "chat_sessions": "is about users, by whom it is erased",
    "chat_messages": "is about users, by whom it is erased",
    "liaison_shares": "is about users, by whom it is erased",
    "liaison_activations": "is about users, by whom it is erased",
    "liaison_events": "is about users, by whom it is erased",
    "liaison_event_counters": "has nothing of agents",
    "liaison_heartbeats": "has whether an agent is there",
    "liaison_holds": "has whether an agent has a session of a user",
}
"""The tables of which an erasure leaves what is an agent's, with the reasons."""

SECRET = "Rumpelstiltskin"


def test_each_table_is_erased_or_kept_for_a_reason() -> None:
    tables = {table.name for table in journal_tables()}
    assert tables == ERASED | KEPT.keys()
    assert not ERASED & KEPT.keys()


def leave_traces(bob: CstpClient, alice: CstpClient) -> None:
    """Let bob say a secret in all ways that clients have."""
    kept = alice.record_decision("A queue between the services", visibility="shared")
    own = bob.record_decision(f"A queue for {SECRET}", context=SECRET, tags=[SECRET], visibility="shared")
    bob.update_decision(own.id, context=f"{SECRET} again")
    alice.review_decision(own.id, "failure", notes="too slow")
    bob.review_decision(kept.id, "success", notes=SECRET)
    bob.delete_decision(bob.record_decision(SECRET, request_id=SECRET).id)
    for number in range(2):
        bob.announce_intent(f"Deploy {SECRET}", correlation_id=f"task-{number}", visibility="shared")
    bob.close_intent("task-0", "success", notes=SECRET)
    bob.record_thought(f"{SECRET} prefers a queue", decision_id=kept.id, visibility="shared")
    bob.record_thought(f"{SECRET} prefers a queue", decision_id=own.id, request_id=SECRET)
    bob.record_thought(f"{SECRET} is late", correlation_id="task-1")
    alice.record_thought("no longer needed", decision_id=own.id)
    bob.check_guardrails(f"Deploy {SECRET}", context={"affectsProduction": True, "who": SECRET})
    # The latest lesson of alice's decision is hers again.
    alice.review_decision(kept.id, "success", notes="it works")


def test_nothing_that_an_agent_said_is_left_in_any_table(database_url: str, tmp_path: Path) -> None:
    wanted = settings(tmp_path, storage={"url": database_url})
    with (
        running(wanted) as app,
        CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as alice,
        CstpClient(f"grpc://{app.target}", TOKENS["bob"]) as bob,
    ):
        leave_traces(bob, alice)
        related = alice.announce_intent(f"Deploy {SECRET} too", correlation_id="c-alice").related_intents
        assert {intent.agent for intent in related} == {"bob"}
        foreseen = alice.erase_agent("bob", dry_run=True)
        assert alice.erase_agent("bob", dry_run=True) == foreseen
        report = alice.erase_agent("bob")
        assert report == foreseen
        assert (report.decisions, report.reviews, report.intents, report.thoughts) == (1, 1, 2, 3)
        # Those of others about an erased decision are gone with it.
        assert not list(alice.list_thoughts())
        # The searches, the memory of the server and its lists have forgotten it, too.
        assert not [each for each in alice.query_decisions(f"queue {SECRET}").decisions if each.agent == "bob"]
        assert not alice.announce_intent("Deploy it now", correlation_id="c-alice-2").related_intents
        # The one that was closed last keeps its number, and has a name of nobody.
        assert {intent.agent for intent in alice.list_intents()} == {"alice", "(erased)"}
        assert not [each for each in bob.list_decisions() if each.agent == "bob"]
        # Alice said it, too, to have been told of bob.
        alice.erase_agent("alice")
    with closing(open_database(database_url, 1)) as database:
        with database.engine.connect() as connection:
            for table in journal_tables():
                assert SECRET not in repr(connection.execute(select(table)).all()), table.name
        verified = verify(database, keys=TrustedKeys.of([SigningKeyFile.load(tmp_path / KEY_FILE).public_key]))
    assert verified.findings == []
    assert verified.redacted > 5


@pytest.mark.contract(
    "SqlAgentRecordStore.count_records",
    "SqlAgentRecordStore.find_audit_contents",
    "SqlAgentRecordStore.remove_audit_contents",
    "SqlAgentRecordStore.erase_reviews",
    "SqlAgentRecordStore.erase_intents",
    "SqlAgentRecordStore.erase_approvals",
    "SqlAgentRecordStore.erase_tasks",
    "SqlAgentRecordStore.erase_callbacks",
    "SqlAgentRecordStore.erase_thoughts",
    "SqlAgentRecordStore.forget_owner",
)
def test_the_records_of_others_stay_in_every_table(database: Database, writer: GroupCommitWriter) -> None:
    tables = {table.name: table for table in journal_tables()}
    with database.open_write_connection() as connection, connection.begin():
        for name, table in tables.items():
            # The content of the entries is still there, and is what the trail keeps.
            content = {"judged": b"{}", "content_hash": None} if name == "audit_entries" else {}
            # PostgreSQL itself numbers the changes, which the erasure adds.
            if name not in ("journal_identity", "shared_intent_changes"):
                connection.execute(insert(table), [example_row(table, number) | content for number in (1, 2, 3)])
    store = SqlAgentRecordStore(database)
    for number in (1, 3):
        agent = example_row(tables["intents"], number)["agent"]
        counted = store.count_records(agent)
        assert (counted.tasks, counted.callbacks, counted.audit_entries) == (1, 3, 1)
        rows = store.find_audit_contents(agent, 0, 10)
        assert writer.run(partial(store.remove_audit_contents, rows=rows)) == 1
        taken = [
            writer.run(partial(erase, agent=agent, limit=10))
            for erase in (
                store.erase_reviews,
                partial(store.erase_intents, at=NOON),
                store.erase_approvals,
                store.erase_tasks,
                store.erase_callbacks,
                store.erase_thoughts,
                store.forget_owner,
            )
        ]
        assert taken == [1, 1, 1, 1, 3, 1, 1]
        assert not store.find_audit_contents(agent, 0, 10)
    named = {
        "thoughts",
        "intents",
        "shared_intents",
        "approvals",
        "tasks",
        "push_configs",
        "task_notifications",
        "callbacks",
    }
    with database.engine.connect() as connection:
        for name in ERASED:
            stored = connection.execute(select(tables[name])).mappings().all()
            if name in named | {"citations", "notices"}:
                # The last intent and the last request keep their numbers, and nothing else.
                owners = {row["agent"] for row in stored}
                assert owners - {"(erased)"} == {example_row(tables["intents"], 2)["agent"]}, name
            else:
                assert len(stored) == 3, name


def test_the_command_says_how_much_was_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with running(settings(tmp_path / "data")) as app, CstpClient(f"grpc://{app.target}", TOKENS["bob"]) as bob:
        bob.record_decision("A decision of bob")
        options = ("--agent", f"grpc://{app.target}", "--token", TOKENS["alice"])
        refused = run_command("erase", "bob", *options, input="n\n")
        assert refused.exit_code == 1
        assert list(bob.list_decisions())
        result = run_command("erase", "bob", "--yes", *options)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("Erased: 1 decision, 0 reviews, 0 intents, ")
        assert not [each for each in bob.list_decisions() if each.agent == "bob"]


def open_session_of(client: CstpClient, session: str, user: str) -> None:
    """Open a session in which a user says a secret, and hand it to a liaison agent for a secret reason."""
    context = {"shared_intent": f"what {SECRET} wants"}
    client.liaison.open_session(user_id=user, context=context, chat_session_id=session)
    client.liaison.append_message(session, role="user", content=f"I am {SECRET}")
    client.liaison.heartbeat("content")
    client.liaison.share_context_to_agent("guide", "liaison_content", context, conversation_id=session)
    client.liaison.close_session(session)


@pytest.mark.contract("SqlErasureStore.count_user_records")
def test_nothing_about_a_subject_is_left_in_any_table(database_url: str, tmp_path: Path) -> None:
    wanted = settings(tmp_path, storage={"url": database_url}, liaison={"audit_content": True})
    with (
        running(wanted) as app,
        CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as alice,
        CstpClient(f"grpc://{app.target}", TOKENS["carol"]) as carol,
    ):
        open_session_of(alice, "s-1", SECRET)
        open_session_of(alice, "s-2", "somebody else")
        carol.liaison.open_session(user_id=SECRET, chat_session_id="s-3")
        found = alice.erase_subject(SECRET)
        assert (found.erased, found.sessions, found.messages, found.shared_contexts) == (False, 1, 1, 1)
        assert alice.erase_subject(SECRET) == found
        erased = alice.erase_subject(SECRET, confirm=True)
        found.erased = True
        assert erased == found
        assert {each.id for each in alice.liaison.list_sessions()} == {"s-2"}
        assert {each.id for each in carol.liaison.list_sessions()} == {"s-3"}
        # What the other one said is a secret, too.
        assert alice.erase_subject("somebody else", confirm=True).audit_entries == erased.audit_entries
        assert carol.erase_subject(SECRET, confirm=True).sessions == 1
    with closing(open_database(database_url, 1)) as database:
        with database.engine.connect() as connection:
            for table in journal_tables():
                assert SECRET not in repr(connection.execute(select(table)).all()), table.name
        verified = verify(database, keys=TrustedKeys.of([SigningKeyFile.load(tmp_path / KEY_FILE).public_key]))
    assert verified.findings == []
    assert verified.redacted > 5


@pytest.mark.contract("SqlAgentRecordStore.find_subject_contents", "SqlAgentRecordStore.count_subject_contents")
def test_entries_under_an_id_that_another_tenant_has_too_keep_their_contents(database_url: str, tmp_path: Path) -> None:
    with (
        running(settings(tmp_path, storage={"url": database_url})) as app,
        CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as alice,
        CstpClient(f"grpc://{app.target}", TOKENS["carol"]) as carol,
    ):
        for client in (alice, carol):
            client.liaison.open_session(user_id="u-17", chat_session_id="shared")
        alice.liaison.open_session(user_id="u-18", chat_session_id="own")
    with closing(open_database(database_url, 1)) as database:
        store, now = SqlAgentRecordStore(database), datetime.now(UTC)
        assert store.count_subject_contents("default", "u-17", now) == 0
        assert store.count_subject_contents("default", "u-18", now) == 1
        assert store.count_subject_contents("default", "u-18", NOON) == 0
        (row,) = store.find_subject_contents("default", "u-18", now, 0, 10)
        assert "own" in row["action"]
        assert not store.find_subject_contents("default", "u-18", now, row["id"], 10)


def test_sessions_are_erased_where_the_server_serves_none(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as alice:
        alice.liaison.open_session(user_id="u-17", chat_session_id="s-1")
    without = settings(tmp_path, liaison={"enabled": False})
    with running(without) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as alice:
        assert alice.erase_subject("u-17", confirm=True).sessions == 1
        assert alice.erase_subject("u-17").sessions == 0


def test_the_command_says_how_much_there_is_before_it_erases_a_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with running(settings(tmp_path / "data")) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as alice:
        alice.liaison.open_session(user_id="u-17", chat_session_id="s-1")
        options = ("--agent", f"grpc://{app.target}", "--token", TOKENS["alice"])
        assert run_command("erase", *options).exit_code == 2
        alice.record_decision("Use a queue")
        counted = run_command("erase", "alice", "--dry-run", *options)
        assert counted.stdout.startswith("Kept: 1 decision, ")
        asked = run_command("erase", "alice", *options, input="n\n")
        assert "Erase everything of alice (1 decision, " in asked.stderr
        assert list(alice.list_decisions())
        counted = run_command("erase", "--subject", "u-17", "--dry-run", *options)
        assert counted.stdout.startswith("Kept: 1 session, 0 messages, ")
        refused = run_command("erase", "--subject", "u-17", *options, input="n\n")
        assert refused.exit_code == 1
        assert "1 session" in refused.stderr
        assert list(alice.liaison.list_sessions())
        result = run_command("erase", "--subject", "u-17", "--yes", *options)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith("Erased: 1 session, ")
        assert not list(alice.liaison.list_sessions())
