"""Clients of a data folder without a server: what they share with each other and with a server, and who may open it."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.client import AsyncCstpClient, CstpClient
from cstp_grpc.contract.errors import (
    DeadlineExceeded,
    InvalidArgument,
    MethodNotFound,
    NotFound,
    QueryFailed,
    Unavailable,
)
from cstp_grpc.gen.cstp.v1 import journal_pb2
from cstp_grpc.platform.config import ConfigError
from tests.databases import write_journal
from tests.harness import TIMEOUT, TOKENS, running, settings

RECORD_ONE = """
import sys
from cstp_grpc.client import CstpClient
with CstpClient(f"local:{sys.argv[1]}", agent=sys.argv[2]) as client:
    print(client.record_decision(f"Decided by {sys.argv[2]}", visibility="shared").id)
"""


@pytest.fixture(autouse=True)
def configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither weights nor settings of the machine."""
    monkeypatch.delenv("CSTP_CONFIG", raising=False)
    monkeypatch.setenv("CSTP_EMBEDDING__PROVIDER", "lexical")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.mkdir()
    write_journal(path / "journal.db")
    return path


@pytest.fixture
def client(folder: Path) -> Iterator[CstpClient]:
    with CstpClient(f"local:{folder}", agent="alice") as client:
        yield client


def titles(decisions: Any) -> set[str]:
    return {decision.title for decision in decisions}


def test_an_empty_folder_is_a_journal(tmp_path: Path) -> None:
    with CstpClient(f"local:{tmp_path / 'new'}") as client:
        recorded = client.record_decision("Use a queue between the services")
        assert client.get_decision(recorded.id).agent == "developer"
        assert titles(client.query_decisions("a queue").decisions) == {"Use a queue between the services"}


def test_an_announcement_is_judged_recorded_and_repeated(client: CstpClient) -> None:
    client.record_decision("Drop the old table of sessions", outcome="failure")
    first = client.announce_intent("Drop the old table of sessions", correlation_id="drop")
    again = client.announce_intent("Drop the old table of sessions", correlation_id="drop")
    assert titles(first.similar_decisions) == {"Drop the old table of sessions"}
    assert (first.received_at, first.revision) == (again.received_at, again.revision)
    assert [entry.correlation_id for entry in client.list_audit_entries(event="intent_announced")] == ["drop"] * 2


def test_a_server_goes_on_with_the_folder_and_back(folder: Path) -> None:
    with CstpClient(f"local:{folder}", agent="alice") as local:
        first = local.record_decision("Use a queue between the services").id
    with running(settings(folder)) as app, CstpClient(app.url, TOKENS["alice"]) as remote:
        assert remote.query_decisions("a queue").decisions[0].id == first
        second = remote.record_decision("Use a queue for mail").id
    with CstpClient(f"local:{folder}", agent="alice") as local:
        assert {found.id for found in local.query_decisions("a queue").decisions} == {first, second}


def test_a_folder_of_a_server_is_not_opened(folder: Path) -> None:
    with running(settings(folder)), CstpClient(f"local:{folder}") as local:
        with pytest.raises(Unavailable, match=rf"{folder}: is in use by the cstp process \d+") as found:
            local.check_guardrails("anything")
        assert found.value.final


def test_clients_that_are_open_at_once_find_what_each_other_records(folder: Path) -> None:
    with ExitStack() as opened:
        alice, bob = (opened.enter_context(CstpClient(f"local:{folder}", agent=name)) for name in ("alice", "bob"))
        assert not bob.query_decisions("a queue").decisions
        recorded = alice.record_decision("Use a queue between the services", visibility="shared")
        assert [found.id for found in bob.query_decisions("a queue").decisions] == [recorded.id]
        alice.delete_decision(recorded.id)
        assert not bob.query_decisions("a queue").decisions
        with pytest.raises(NotFound):
            bob.get_decision(recorded.id)


def test_a_configured_database_is_used(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CSTP_STORAGE__URL", database_url)
    monkeypatch.setenv("CSTP_DATA_DIR", str(tmp_path / "data"))
    with ExitStack() as opened:
        alice, bob = (opened.enter_context(CstpClient("local:", agent=name)) for name in ("alice", "bob"))
        assert not bob.query_decisions("a queue").decisions
        recorded = alice.record_decision("Use a queue between the services", visibility="shared")
        assert [found.id for found in bob.query_decisions("a queue").decisions] == [recorded.id]
        announced = [each.announce_intent("Drop the queue", visibility="shared") for each in (alice, bob)]
        assert [len(answer.related_intents) for answer in announced] == [0, 1]
    wanted = settings(tmp_path / "data", storage={"url": database_url})
    with running(wanted) as app, CstpClient(app.url, TOKENS["alice"]) as remote:
        assert remote.get_decision(recorded.id).title == recorded.title


@pytest.mark.slow
def test_processes_that_come_at_once_take_turns(folder: Path) -> None:
    programs = [
        subprocess.Popen([sys.executable, "-c", RECORD_ONE, str(folder), f"agent-{number}"], stdout=subprocess.PIPE)
        for number in range(3)
    ]
    printed = [program.communicate()[0].decode().strip() for program in programs]
    assert [program.returncode for program in programs] == [0, 0, 0]
    with CstpClient(f"local:{folder}", agent="alice") as client:
        assert {decision.id for decision in client.list_decisions()} == set(printed)


def test_threads_call_one_client_at_once(client: CstpClient) -> None:
    with ThreadPoolExecutor(8) as threads:
        recorded = list(threads.map(lambda number: client.record_decision(f"Decision {number}").id, range(24)))
    assert {decision.id for decision in client.list_decisions()} == set(recorded)


def test_a_watch_is_told_of_changes_while_others_call(client: CstpClient) -> None:
    seen: list[str] = []
    subscribed = threading.Event()

    def follow() -> None:
        for change in client.watch_decisions(timeout=TIMEOUT):
            subscribed.set()
            if change.HasField("decision"):
                seen.append(change.decision.title)
                return

    watcher = threading.Thread(target=follow)
    watcher.start()
    assert subscribed.wait(TIMEOUT)
    client.record_decision("Use a queue between the services")
    watcher.join(TIMEOUT)
    assert seen == ["Use a queue between the services"]


def test_a_watch_ends_in_time(client: CstpClient) -> None:
    with pytest.raises(DeadlineExceeded):
        list(client.watch_decisions(timeout=0.1, resume=False))


def test_a_closed_client_ends_its_watches_and_refuses_calls(client: CstpClient) -> None:
    watch = client.watch_decisions()
    next(iter(watch))
    client.close()
    with pytest.raises(Unavailable, match="closed"):
        client.check_guardrails("anything")


def test_a_journal_that_a_newer_version_has_migrated_is_left_alone(client: CstpClient, folder: Path) -> None:
    client.check_guardrails("anything")
    with closing(sqlite3.connect(folder / "journal.db")) as newer, newer:
        newer.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(QueryFailed, match="a newer version of this program has migrated the journal"):
        client.record_decision("Use a queue")


def test_invalid_requests_name_their_fields_and_are_counted(folder: Path) -> None:
    with CstpClient(f"local:{folder}", agent="alice") as client:
        with pytest.raises(InvalidArgument) as found:
            client.record_decision("", confidence=2)
        assert {violation.field for violation in found.value.violations} == {"decision.title", "decision.confidence"}
    with CstpClient(f"local:{folder}", agent="alice") as client:
        (entry,) = client.list_audit_entries(event="calls_refused")
        assert (entry.requesting_agent, entry.action, entry.count) == ("alice", "cstp.recordDecision", 1)


def test_what_needs_a_server_says_so(client: CstpClient) -> None:
    with pytest.raises(MethodNotFound, match="needs a server"):
        client.liaison.list_liaison_agents()


def test_the_timeout_of_a_call_holds(client: CstpClient) -> None:
    # On a busy machine it is over before the call begins.
    with pytest.raises(DeadlineExceeded, match=r"no answer within 1e-06 s|deadline passed"):
        client.check_guardrails("anything", timeout=1e-6)


def test_missing_weights_are_told_by_the_call_that_needs_them(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSTP_EMBEDDING__PROVIDER", "minilm")
    monkeypatch.setenv("CSTP_EMBEDDING__MODEL_PATH", str(tmp_path / "nowhere"))
    with CstpClient(f"local:{folder}") as client:
        assert client.check_guardrails("rename a variable").allowed
        with pytest.raises(QueryFailed, match="nowhere is not a folder"):
            client.query_decisions("a queue")


def test_a_configuration_gives_the_rules_and_the_agent(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = [{"name": "carol", "token": "carol-secret-token"}]
    monkeypatch.setenv("CSTP_AUTH__TOKENS", str(tokens).replace("'", '"'))
    with CstpClient(f"local:{folder}") as client:
        assert client.record_decision("Use a queue").agent == "carol"
    tokens.append({"name": "dave", "token": "dave-secret-token"})
    monkeypatch.setenv("CSTP_AUTH__TOKENS", str(tokens).replace("'", '"'))
    with pytest.raises(ConfigError, match="carol, dave"):
        CstpClient(f"local:{folder}")
    with CstpClient(f"local:{folder}", agent="dave") as client:
        assert client.record_decision("Use a queue").agent == "dave"


@pytest.mark.parametrize("kind", [str, Path])
def test_a_configuration_file_is_named_by_a_text_or_a_path(
    kind: Callable[[Path], str | Path], folder: Path, tmp_path: Path
) -> None:
    config = tmp_path / "cstp.yaml"
    config.write_text("auth: {tokens: [{name: erin, token: erin-secret-token}]}")
    with CstpClient(f"local:{folder}", config=kind(config)) as client:
        assert client.record_decision("Use a queue").agent == "erin"


def test_arguments_that_do_not_fit_the_target_are_refused(folder: Path) -> None:
    with pytest.raises(InvalidArgument, match="token"):
        CstpClient(f"local:{folder}", "a-token")
    with pytest.raises(InvalidArgument, match="agent"):
        CstpClient("grpc://127.0.0.1:1", agent="alice")
    for name in ("", "x" * 201, "intent-layer"):
        with pytest.raises(InvalidArgument, match="agent"):
            CstpClient(f"local:{folder}", agent=name)


def test_the_asynchronous_client_does_the_same(folder: Path) -> None:
    async def use_client() -> None:
        async with AsyncCstpClient(f"local:{folder}", agent="alice") as client:
            recorded = await client.record_decision("Use a queue between the services")
            found = await client.query_decisions("a queue")
            assert [decision.id for decision in found.decisions] == [recorded.id]
            with pytest.raises(InvalidArgument):
                await client.record_decision("")
            changes = client.watch_decisions(timeout=TIMEOUT)
            assert not (await anext(changes)).HasField("decision")
            await client.record_decision("Use a queue for mail")
            assert (await anext(changes)).decision.title == "Use a queue for mail"
            await changes.aclose()
        with pytest.raises(Unavailable, match="closed"):
            await client.query_decisions("a queue")

    asyncio.run(use_client())


def test_pages_and_imports_are_those_of_a_server(client: CstpClient) -> None:
    contents = [journal_pb2.DecisionContent(title=f"Decision {number}") for number in range(5)]
    requests = [
        journal_pb2.ImportDecisionsRequest(source=f"records#{number}", decision=content)
        for number, content in enumerate(contents)
    ]
    assert len(list(client.import_decisions(requests, batch=2))) == 5
    assert len(titles(islice(client.list_decisions(page_size=2), 5))) == 5
