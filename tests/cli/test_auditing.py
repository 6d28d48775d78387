"""audit and intents."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Invoke, Server
from tests.harness import running, settings
from tests.modules.intent_layer.trees import write_tree


@pytest.fixture
def busy(server: Server) -> Server:
    server.ok("check", "tidy up", agent="bob")
    assert server("check", "deploy", "--context", "affectsProduction=true").exit_code == 3
    server.ok("announce", "Rename a variable", "--correlation-id", "mine-1", "--stakes", "low", "--category", "code")
    return server


def test_the_trail_is_listed_latest_first(busy: Server) -> None:
    entries = busy.json("audit")["entries"]
    assert [entry["event"] for entry in entries] == ["intent_announced", "guardrail_check", "guardrail_check"]
    shown = busy.ok("audit")
    assert shown.index("Rename a variable") < shown.index("deploy") < shown.index("tidy up")


def test_the_trail_tells_who_claims_to_be_somebody(server: Server) -> None:
    params = '{"action": {"description": "tidy up"}, "agent": {"id": "somebody"}}'
    server.ok("call", "cstp.checkGuardrails", params, agent="bob")
    assert "claims to be somebody" in server.ok("audit")


@pytest.mark.parametrize(
    ("filters", "actions"),
    [
        (("--blocked",), ["deploy"]),
        (("--by", "bob"), ["tidy up"]),
        (("--event", "intent_announced"), ["Rename a variable"]),
        (("--correlation-id", "mine-1"), ["Rename a variable"]),
        (("--guardrail", "no-production-without-review"), ["deploy"]),
        (("--limit", "1"), ["Rename a variable"]),
        (("--before", "2020-01-01"), []),
    ],
)
def test_the_trail_can_be_narrowed(busy: Server, filters: tuple[str, ...], actions: list[str]) -> None:
    assert [entry["action"] for entry in busy.json("audit", *filters)["entries"]] == actions


def test_calls_that_were_refused_are_shown_with_their_count(tmp_path: Path, invoke: Invoke) -> None:
    wanted = settings(tmp_path / "data")
    with running(wanted) as app:
        server = Server(app, invoke)
        for _ in range(3):
            assert server("intents", agent="reader").exit_code == 1
        assert server("call", "cstp.checkGuardrails", "{}").exit_code == 1
    with running(wanted) as app:
        server = Server(app, invoke)
        shown = " ".join(server.ok("audit", "--event", "calls_refused").split())
        (entry,) = server.json("audit", "--error", "PERMISSION_DENIED")["entries"]
    assert "calls refused by reader: cstp.listIntents 3 calls from 20" in shown
    assert "calls refused by alice: cstp.checkGuardrails 1 call from 20" in shown
    assert (entry["requestingAgent"], entry["action"], entry["count"]) == ("reader", "cstp.listIntents", 3)


def test_intents_are_listed(busy: Server) -> None:
    (intent,) = busy.json("intents", "--by", "alice", "--stakes", "low", "--category", "code")["intents"]
    assert intent["intent"] == "Rename a variable"
    assert "Rename a variable" in busy.ok("intents")
    assert busy.ok("intents", "--by", "nobody") == "No matching intents.\n"


def test_the_code_of_an_intent_is_listed(tmp_path: Path, invoke: Invoke) -> None:
    projects = [{"name": "shop", "root": str(write_tree(tmp_path / "shop", {"src/": ""}))}]
    with running(settings(tmp_path / "data", intent_layer={"projects": projects})) as app:
        server = Server(app, invoke)
        paths = [f"src/{number}.py" for number in range(5)]
        server.ok("announce", "Rename", "--project", "shop", *(part for path in paths for part in ("--path", path)))
        (intent,) = server.json("intents")["intents"]
        shown = server.ok("intents")
    assert (intent["project"], intent["paths"]) == ("shop", paths)
    assert "shop, " in shown
    assert "src/0.py, src/1.py, src/2.py, 2 more paths" in " ".join(shown.split())


def test_others_are_told_which_permission_they_lack(busy: Server) -> None:
    result = busy("audit", agent="reader")
    assert result.exit_code == 1
    assert "Add `admin` to the permissions of this token" in result.stderr


def test_entries_are_found_by_words_and_by_their_actions(busy: Server) -> None:
    def find(*conditions: str) -> list[str]:
        return [entry["action"] for entry in busy.json("audit", "search", *conditions)["entries"]]

    assert find("--word", "RENAME", "--word", "variable") == ["Rename a variable"]
    assert find("--category", "code", "--stakes", "low") == ["Rename a variable"]
    assert find("--project", "shop") == []


def test_entries_are_counted(busy: Server) -> None:
    shown = busy.ok("audit", "summarize", "--bucket", "day", "--group-by", "agent", "--group-by", "category")
    counted = [line.split() for line in shown.splitlines()]

    assert [row[:3] for row in counted[1:3]] == [["3", "2", "1"], ["3", "2", "1"]]
    assert ["2", "1", "1", "agent", "alice"] in counted
    assert ["1", "1", "0", "category", "code"] in counted


def test_decisions_of_others_are_overseen(tmp_path: Path, invoke: Invoke) -> None:
    tokens = [
        {"name": "alice", "token": "alice-secret-token", "permissions": ["record", "query", "announce"]},
        {"name": "bob", "token": "bob-secret-token", "permissions": ["query", "oversee"]},
    ]
    with running(settings(tmp_path / "overseen", auth={"tokens": tokens})) as app:
        server = Server(app, invoke)
        made = server.json("record", "Use a queue", "--context", "A private context")["decision"]["id"]
        server.ok("announce", "Deploy", "--context", "A private context")
        bobs = [
            server.ok("list", "--oversee", agent="bob"),
            server.ok("show", made, "--oversee", agent="bob"),
            server.ok("graph", made, "--oversee", agent="bob"),
            server.ok("intents", agent="bob"),
        ]
        assert [text for text in bobs if "private context" in text] == []
        assert ["Use a queue" in text for text in bobs] == [True, True, True, False]
        assert "Deploy" in bobs[-1]
        assert "Use a queue" not in server.ok("list", agent="bob")
        assert server.json("calibration", "--oversee", agent="bob")["leftOut"] == 0
