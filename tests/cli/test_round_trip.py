"""export and import between two servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.contract.enums import Permission
from tests.cli.conftest import Invoke, Server
from tests.harness import TOKENS, running, settings

UNMIGRATED = {
    "tokens": [{"name": "alice", "token": TOKENS["alice"], "permissions": sorted({*Permission} - {Permission.MIGRATE})}]
}


@pytest.fixture
def other(tmp_path: Path, invoke: Invoke) -> Iterator[Server]:
    """Another server."""
    with running(settings(tmp_path / "other")) as app:
        yield Server(app, invoke)


def read_export(server: Server, name: str) -> dict[str, dict[str, Any]]:
    server.ok("export", "--output", name)
    lines = map(json.loads, Path(name).read_text().splitlines())
    return {line["id"]: {key: value for key, value in line.items() if key != "source"} for line in lines}


def test_another_server_gets_the_same_decisions(server: Server, other: Server) -> None:
    reason = r"analysis= cheap \u0000"
    first = server.json("record", "Keep  two spaces", "--tag", "a", "--reason", reason)["decision"]["id"]
    second = server.json("record", "Replace it", "--supersedes", first, "--share")["decision"]["id"]
    gone = server.json("record", "Forget it")["decision"]["id"]
    server.ok("review", second, "--outcome", "failure", "--notes", "Too slow.")
    server.ok("delete", gone, "--yes")
    exported = read_export(server, "a.jsonl")
    shown = other.ok("import", "a.jsonl")
    assert "2 imported, 0 updated, 0 unchanged, 1 deleted, 0 skipped." in shown
    assert read_export(other, "b.jsonl") == exported
    assert "0 imported, 0 updated, 3 unchanged, 0 skipped." in other.ok("import", "a.jsonl")
    assert "0 imported, 0 updated, 3 unchanged, 0 skipped." in server.ok("import", "b.jsonl")
    trail = other.json("audit", "search", "--event", "decision_imported")["entries"]
    assert {entry["decisionId"] for entry in trail} == {first, second}
    assert all(f"a.jsonl#{entry['decisionId']}, as of " in entry["action"] for entry in trail)


def test_the_later_change_wins_and_conflicts_are_named(server: Server, other: Server) -> None:
    first = server.json("record", "Keep two spaces")["decision"]["id"]
    second = server.json("record", "Replace it")["decision"]["id"]
    server.ok("export", "--output", "a.jsonl")
    other.ok("import", "a.jsonl")
    other.ok("update", first, "--title", "Keep three spaces")
    shown = other.ok("import", "a.jsonl", "--verbose")
    assert "0 imported, 0 updated, 1 unchanged, 1 later in this journal, 0 skipped." in shown
    assert f"a.jsonl#{first}: later in this journal, nothing was stored" in shown
    other.ok("export", "--output", "b.jsonl")
    assert "0 imported, 1 updated, 1 unchanged" in server.ok("import", "b.jsonl")
    assert server.json("show", first)["decision"]["title"] == "Keep three spaces"
    other.ok("delete", second, "--yes")
    other.ok("export", "--output", "b.jsonl")
    assert "1 deleted, 0 skipped." in server.ok("import", "b.jsonl")
    assert server("show", second).exit_code != 0
    assert "1 deleted before" in server.ok("import", "a.jsonl")


def test_an_interrupted_transfer_is_continued(server: Server, other: Server, home: Path) -> None:
    lines = [{"id": f"n{number}", "title": f"Decision {number}", "date": "2026-01-01"} for number in range(70)]
    (home / "records.jsonl").write_text("\n".join(map(json.dumps, lines)))
    server.ok("import", "records.jsonl")
    exported = read_export(server, "a.jsonl")
    whole = Path("a.jsonl").read_text().splitlines(keepends=True)
    Path("a.jsonl").write_text("".join(whole[:40]) + whole[40][:100])
    partial = other("import", "a.jsonl")
    assert partial.exit_code == 1
    assert "40 imported, 0 updated, 0 unchanged, 1 skipped, 1 of them for an error." in partial.stdout
    Path("a.jsonl").write_text("".join(whole))
    assert "30 imported, 0 updated, 40 unchanged, 0 skipped." in other.ok("import", "a.jsonl")
    assert read_export(other, "b.jsonl") == exported


def test_without_the_permission_decisions_get_new_ids_and_nothing_is_deleted(
    server: Server, invoke: Invoke, tmp_path: Path
) -> None:
    kept = server.json("record", "Keep it")["decision"]["id"]
    server.ok("delete", server.json("record", "Forget it")["decision"]["id"], "--yes")
    server.ok("export", "--output", "a.jsonl")
    with running(settings(tmp_path / "other", auth=UNMIGRATED)) as app:
        other = Server(app, invoke)
        result = other("import", "a.jsonl")
        assert "1 imported, 0 updated, 0 unchanged, 1 skipped." in result.stdout
        assert "a deletion: 'alice' lacks the permission migrate" in result.stdout
        assert "1 decision cannot be imported under the same id: 'alice' lacks the permission migrate." in result.stderr
        (found,) = other.json("list")["decisions"]
        assert (found["title"], found["id"] != kept) == ("Keep it", True)
        other.ok("export", "--output", "b.jsonl")
        assert "1 already in this journal" in other.ok("import", "b.jsonl")
        other.ok("delete", found["id"], "--yes")
        assert "it was deleted in this journal; --restore-deleted" in other.ok("import", "b.jsonl")
        assert other.json("list")["decisions"] == []
        assert "1 imported" in other.ok("import", "b.jsonl", "--restore-deleted")


def test_the_export_of_another_agent_is_imported_under_new_ids_of_ones_own(server: Server, other: Server) -> None:
    made = server.json("record", "Keep it")["decision"]["id"]
    server.ok("export", "--output", "a.jsonl")
    result = other("import", "a.jsonl", agent="bob")
    assert "1 decision cannot be imported under the same id: another agent recorded it." in result.stderr
    (found,) = other.json("list", agent="bob")["decisions"]
    assert (found["agent"], found["id"] == made) == ("bob", False)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"id": "dec-1"}, "id: "),
        ({"provenance": {}}, "provenance.changedDate: must be given"),
        ({"provenance": {"changedDate": "yesterday"}}, "it is not an exported decision"),
        ({"provenance": {"changedDate": "2026-01-01T00:00:00Z", "contentHash": "x"}}, "content_hash: "),
        ({"provenance": 7}, "it is not an exported decision"),
        ({"unknown": 1}, "it is not an exported decision"),
        ({"title": ""}, "title: "),
        ({"deletedDate": "x"}, "it is not an exported decision"),
        ({"title": "Use \\\0"}, "it contains NUL"),
    ],
)
def test_a_changed_line_is_refused_and_the_others_are_imported(
    server: Server, other: Server, changes: dict[str, Any], reason: str
) -> None:
    for title in ("Keep it", "Keep this, too"):
        server.ok("record", title)
    server.ok("export", "--output", "a.jsonl")
    first, second = Path("a.jsonl").read_text().splitlines()
    Path("a.jsonl").write_text(f"{json.dumps(json.loads(first) | changes)}\n{second}\n")
    result = other("import", "a.jsonl")
    assert result.exit_code == 1
    assert "1 imported, 0 updated, 0 unchanged, 1 skipped, 1 of them for an error." in result.stdout
    assert "a.jsonl:1: " in result.stdout
    assert reason in result.stdout


def test_an_id_of_another_agent_is_refused_with_an_error(server: Server, other: Server) -> None:
    server.ok("record", "Keep it", "--share")
    server.ok("export", "--output", "a.jsonl")
    other.ok("import", "a.jsonl")
    Path("a.jsonl").write_text(Path("a.jsonl").read_text().replace('"alice"', '"bob"').replace("Keep it", "Mine"))
    result = other("import", "a.jsonl", agent="bob")
    assert result.exit_code == 1
    assert "0 imported, 0 updated, 0 unchanged, 1 of another agent, 0 skipped." in result.stdout
    assert [item["title"] for item in other.json("list")["decisions"]] == ["Keep it"]
