"""import: through a server, or into the store where none runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from cstp_grpc.contract.enums import Permission
from cstp_grpc.server.app import App
from tests.cli.conftest import Invoke, Server
from tests.harness import TOKENS, running, settings
from tests.platform.embedding.endpoints import EmbeddingServer, embedding_server
from tests.waiting import wait_until

ADR = """\
# {number}. {title}

Date: 2026-01-0{number}

## Status

{status}

## Context

Sessions are read with every request.

## Decision

We will do so.
"""

RECORDS = """\
{"id": "a", "title": "Use PostgreSQL", "outcome": "success", "date": "2026-01-01", "project": "shop"}
{"id": "b", "title": "Use MongoDB", "outcome": "failure", "date": "2025-01-01"}
"""

STANDALONE = {"CSTP_EMBEDDING__PROVIDER": "lexical"}
"""How a store is used without a server here."""


@pytest.fixture
def adrs(home: Path) -> Path:
    """A folder of two records and a page that is none."""
    folder = home / "adr"
    folder.mkdir()
    for number, title in ((1, "Keep sessions in Redis"), (2, "Use a queue for mail")):
        (folder / f"000{number}-{title.lower().replace(' ', '-')}.md").write_text(
            ADR.format(number=number, title=title, status="Accepted")
        )
    (folder / "README.md").write_text("# About\n\nAll our decisions.\n")
    return folder


def test_importing_says_what_became_of_each_file(server: Server, adrs: Path) -> None:
    shown = server.ok("import", adrs)
    assert "imported    adr/0001-keep-sessions-in-redis.md  (dated by date line)" in shown.replace(
        f"{adrs.parent}/", ""
    )
    assert "README.md: " in shown
    assert "2 imported, 0 updated, 0 unchanged, 1 skipped." in shown
    assert {d["title"] for d in server.json("list")["decisions"]} == {"Keep sessions in Redis", "Use a queue for mail"}


def test_importing_again_changes_only_what_has_changed(server: Server, adrs: Path) -> None:
    server.ok("import", adrs)
    assert "0 imported, 0 updated, 2 unchanged, 1 skipped." in server.ok("import", adrs)
    changed = adrs / "0001-keep-sessions-in-redis.md"
    changed.write_text(changed.read_text().replace("every request", "nearly every request"))
    shown = server.ok("import", adrs)
    assert "0 imported, 1 updated, 1 unchanged, 1 skipped." in shown


def test_a_broken_file_is_skipped_with_its_reason_and_fails_the_command(server: Server, adrs: Path) -> None:
    (adrs / "0003-broken.md").write_bytes(b"# 3. \xff\xfe\n\n## Status\n\nAccepted\n")
    result = server("import", adrs, adrs / "missing.md")
    assert result.exit_code == 1
    assert "0003-broken.md: it is not UTF-8 text" in result.stdout
    assert "missing.md: it cannot be read" in result.stdout
    assert "2 imported, 0 updated, 0 unchanged, 3 skipped, 2 of them for an error." in result.stdout


def test_a_record_that_the_server_would_refuse_is_skipped_and_stops_nothing(server: Server, home: Path) -> None:
    long = json.dumps({"id": "c", "title": "Long", "category": "x" * 101})
    (home / "records.jsonl").write_text(RECORDS + long + "\n")
    result = server("import", "records.jsonl")
    assert result.exit_code == 1
    assert "records.jsonl: 2 imported" in result.stdout
    assert "records.jsonl:3: " in result.stdout
    assert "category" in result.stdout


def test_options_share_the_decisions_and_name_their_project(server: Server, home: Path) -> None:
    (home / "records.jsonl").write_text(RECORDS)
    server.ok("import", "records.jsonl", "--share", "--project", "website")
    seen = {d["title"]: d for d in server.json("list", agent="bob")["decisions"]}
    assert seen["Use PostgreSQL"]["project"] == "shop"
    assert seen["Use MongoDB"]["project"] == "website"
    assert seen["Use MongoDB"]["visibility"] == "shared"


def test_foreign_records_are_read_by_a_mapping(server: Server, home: Path) -> None:
    (home / "records.jsonl").write_text('{"number": 7, "name": "Use tabs", "state": "Rejected"}\n')
    mapping = {
        "fields": {"id": "number", "title": "name", "outcome": "state"},
        "values": {"outcome": {"Rejected": "failure"}},
    }
    (home / "map.yaml").write_text(yaml.safe_dump(mapping))
    server.ok("import", "records.jsonl", "--map", "map.yaml")
    (decision,) = server.json("list")["decisions"]
    assert (decision["title"], decision["outcome"]) == ("Use tabs", "failure")
    (home / "map.yaml").write_text("fields: {titel: name}\n")
    result = server("import", "records.jsonl", "--map", "map.yaml")
    assert result.exit_code == 1
    assert "map.yaml:1" in result.stderr


def test_a_dry_run_sends_nothing(invoke: Invoke, adrs: Path, home: Path) -> None:
    result = invoke("import", adrs, "--dry-run")
    assert result.exit_code == 0
    assert "2 read, 0 imported, 0 updated, 0 unchanged, 1 skipped." in result.stdout
    assert not (home / "var").exists()


def test_the_report_as_json_has_every_record(server: Server, adrs: Path) -> None:
    report = server.json("import", adrs)
    assert [result["action"] for result in report["results"]] == ["imported", "imported"]
    assert [record["dateFrom"] for record in report["records"]] == ["date line", "date line"]
    assert [result["source"] for result in report["results"]] == [record["source"] for record in report["records"]]
    (skipped,) = report["skipped"]
    assert skipped["error"] is False


def test_every_page_is_imported_on_demand(server: Server, home: Path) -> None:
    (home / "rota.md").write_text("# Ways of working\n\nWe pair on Mondays.\n")
    assert "0 imported, 0 updated, 0 unchanged, 1 skipped." in server.ok("import", "rota.md")
    assert "1 imported" in server.ok("import", "rota.md", "--as-records")
    (decision,) = server.json("list")["decisions"]
    assert (decision["title"], decision.get("category")) == ("Ways of working", None)


def test_what_was_guessed_is_told_on_demand(server: Server, home: Path) -> None:
    (home / "0001-use-it.md").write_text(ADR.format(number=1, title="Use it", status="Perhaps"))
    assert "--verbose shows them" in server.ok("import", "0001-use-it.md")
    assert "Perhaps" in server.ok("import", "0001-use-it.md", "--verbose")


def listed(app: App, invoke: Invoke, agent: str) -> list[tuple[str, str]]:
    result = invoke("list", "--json", "--agent", f"grpc://{app.target}", "--token", TOKENS[agent])
    return [(decision["title"], decision["agent"]) for decision in json.loads(result.stdout)["decisions"]]


def test_without_a_server_the_store_is_used_itself(invoke: Invoke, adrs: Path, home: Path) -> None:
    result = invoke("import", adrs, env=STANDALONE)
    assert result.exit_code == 0, result.output
    assert "2 imported" in result.stdout
    assert "2 unchanged" in invoke("import", adrs, env=STANDALONE).stdout
    tokens = [{"name": "developer", "token": TOKENS["alice"], "permissions": ["query"]}]
    with running(settings(home / "var", auth={"tokens": tokens})) as app:
        assert listed(app, invoke, "alice") == [
            ("Use a queue for mail", "developer"),
            ("Keep sessions in Redis", "developer"),
        ]


def configured(home: Path, *recorders: str) -> Path:
    tokens = [{"name": name, "token": f"{name}-secret-token", "permissions": ["query", "record"]} for name in recorders]
    tokens.append({"name": "reader", "token": TOKENS["reader"], "permissions": ["query"]})
    path = home / "cstp.yaml"
    path.write_text(yaml.safe_dump({"data_dir": str(home / "data"), "auth": {"tokens": tokens}}))
    return path


def test_decisions_become_those_of_the_only_agent_that_records(invoke: Invoke, adrs: Path, home: Path) -> None:
    path = configured(home, "alice")
    assert invoke("import", adrs, "--config", path, env=STANDALONE).exit_code == 0
    with running(settings(home / "data")) as app:
        assert {agent for _, agent in listed(app, invoke, "alice")} == {"alice"}


def test_several_agents_that_record_need_a_choice(invoke: Invoke, adrs: Path, home: Path) -> None:
    path = configured(home, "alice", "bob")
    result = invoke("import", adrs, "--config", path, env=STANDALONE)
    assert result.exit_code == 2
    assert "Name the owner of the decisions with --as: alice, bob." in result.stderr
    assert invoke("import", adrs, "--config", path, "--as", "nobody", env=STANDALONE).exit_code == 2
    assert invoke("import", adrs, "--config", path, "--as", "bob", env=STANDALONE).exit_code == 0
    with running(settings(home / "data")) as app:
        assert {agent for _, agent in listed(app, invoke, "bob")} == {"bob"}


def test_a_server_on_the_same_folder_is_used(invoke: Invoke, adrs: Path, home: Path) -> None:
    permissions = [permission.value for permission in Permission]
    tokens = [{"name": name, "token": TOKENS[name], "permissions": permissions} for name in ("alice", "bob")]
    with running(settings(home / "data", auth={"tokens": tokens})) as app:
        content = {"data_dir": str(home / "data"), "auth": {"tokens": tokens}, "grpc": {"port": app.port}}
        path = home / "cstp.yaml"
        path.write_text(yaml.safe_dump(content))
        assert "2 imported" in invoke("import", adrs, "--config", path, "--as", "bob").stdout
        assert {agent for _, agent in listed(app, invoke, "bob")} == {"bob"}
        nobody = invoke("import", adrs, "--config", path)
        assert nobody.exit_code == 1
        assert "--token" in nobody.stderr


def test_a_failure_on_the_way_is_told_with_what_was_stored(server: Server, adrs: Path) -> None:
    result = server("import", adrs, agent="reader")
    assert result.exit_code == 1
    assert "0 imported" in result.stdout
    assert "Add `record` to the permissions" in result.stderr


def test_json_rpc_carries_no_import_and_says_so(invoke: Invoke, adrs: Path) -> None:
    result = invoke("import", adrs, "--agent", "http://127.0.0.1:1", "--token", "any-token")
    assert result.exit_code == 1
    assert "grpc://" in result.stderr


def test_an_interrupted_import_goes_on_where_it_stopped(invoke: Invoke, home: Path) -> None:
    titles = [f"Decision number {number}" for number in range(100)]
    lines = [json.dumps({"id": title, "title": title, "date": "2026-01-01"}) for title in titles]
    (home / "records.jsonl").write_text("\n".join(lines))
    with embedding_server() as endpoint:
        embedding = {"PROVIDER": "openai", "URL": endpoint.url, "MODEL": "small", "DIMENSIONS": "1024"}
        env = {**{f"CSTP_EMBEDDING__{key}": value for key, value in embedding.items()}}
        first = endpoint.reply
        endpoint.reply = lambda texts: first(texts) if titles[0] in texts else (400, {})
        interrupted = invoke("import", "records.jsonl", env=env)
        assert interrupted.exit_code == 1
        assert "64 imported, 0 updated, 0 unchanged, 0 skipped, 36 not sent." in interrupted.stdout
        endpoint.reply = first
        endpoint.requests.clear()
        resumed = invoke("import", "records.jsonl", env=env)
        assert "36 imported, 0 updated, 64 unchanged, 0 skipped." in resumed.stdout
        assert [text for request in endpoint.requests for text in request["input"]] == titles[64:]


@pytest.fixture
def embedding_endpoint() -> Iterator[EmbeddingServer]:
    with embedding_server() as endpoint:
        yield endpoint


def embedding_settings(endpoint: EmbeddingServer) -> dict[str, object]:
    return {"provider": "openai", "url": endpoint.url, "model": "small", "dimensions": 1024}


def write_decisions(path: Path, count: int, context: str = "") -> None:
    lines = [{"id": f"n{number}", "title": f"Decision {number}", "date": "2026-01-01"} for number in range(count)]
    path.write_text("\n".join(json.dumps({**line, "context": context or None}) for line in lines))


def test_long_records_are_sent_in_smaller_requests(
    invoke: Invoke, home: Path, embedding_endpoint: EmbeddingServer
) -> None:
    write_decisions(home / "records.jsonl", 8, "The queue was full. " * 4500)
    embed = embedding_endpoint.reply
    embedding_endpoint.reply = lambda texts: (400, {}) if any("Decision 3" in text for text in texts) else embed(texts)
    with running(settings(home / "data", embedding=embedding_settings(embedding_endpoint))) as app:
        result = Server(app, invoke)("import", "records.jsonl")
    assert result.exit_code == 1
    assert "3 imported, 0 updated, 0 unchanged, 0 skipped, 5 not sent." in result.stdout


def test_what_was_sent_without_an_answer_is_not_called_unsent(
    invoke: Invoke, home: Path, embedding_endpoint: EmbeddingServer
) -> None:
    write_decisions(home / "records.jsonl", 72)
    with running(settings(home / "data", embedding=embedding_settings(embedding_endpoint))) as app:
        server = Server(app, invoke)
        embedding_endpoint.may_answer.clear()
        result = server("import", "records.jsonl", "--timeout", "0.5")
        assert result.exit_code == 1
        assert "0 imported" in result.stdout
        assert "64 sent without an answer, which may be stored, 8 not sent." in result.stdout
        unanswered = server("import", "records.jsonl", "--timeout", "0.5", "--json")
        assert json.loads(unanswered.stdout)["unanswered"] == 64
        embedding_endpoint.may_answer.set()
        wait_until(lambda: len(server.json("list")["decisions"]) > 0, "what was sent is stored")
        assert "8 imported, 0 updated, 64 unchanged, 0 skipped." in server.ok("import", "records.jsonl")


def test_the_usual_timeout_of_calls_does_not_end_an_import(server: Server, home: Path) -> None:
    write_decisions(home / "records.jsonl", 40, "The queue was full. " * 500)
    agents = [{"name": "slow", "url": server.url, "token": TOKENS["alice"]}]
    (home / "agents.yaml").write_text(yaml.safe_dump({"agents": agents, "defaults": {"timeout_seconds": 0.001}}))
    slow = ("--agent", "slow", "--agents-file", "agents.yaml")
    assert server.invoke("list", *slow).exit_code == 1
    result = server.invoke("import", "records.jsonl", *slow)
    assert "40 imported" in result.stdout, result.output
    assert server.invoke("import", "records.jsonl", *slow, "--timeout", "0.001").exit_code == 1


def test_an_export_is_not_imported_into_the_journal_that_it_is_of(server: Server, home: Path) -> None:
    write_decisions(home / "records.jsonl", 3)
    server.ok("import", "records.jsonl")
    server.ok("export", "--output", "export.jsonl")
    shown = server.ok("import", "export.jsonl")
    assert "0 imported, 0 updated, 3 unchanged, 0 skipped." in shown
    assert [item["action"] for item in server.json("import", "export.jsonl")["results"]] == ["unchanged"] * 3
    assert len(server.json("list")["decisions"]) == 3


def test_an_export_does_not_bring_back_a_deleted_decision(server: Server, home: Path) -> None:
    write_decisions(home / "records.jsonl", 2)
    server.ok("import", "records.jsonl")
    server.ok("export", "--output", "export.jsonl")
    deleted = server.json("list")["decisions"][0]
    server.ok("delete", deleted["id"], "--yes")
    shown = server.ok("import", "export.jsonl")
    assert "0 imported, 0 updated, 1 unchanged, 1 deleted before, 0 skipped." in shown
    restored = server.ok("import", "export.jsonl", "--restore-deleted")
    assert "1 imported, 0 updated, 1 unchanged, 0 skipped." in restored
    assert server.json("show", deleted["id"])["decision"]["title"] == deleted["title"]
