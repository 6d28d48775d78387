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
