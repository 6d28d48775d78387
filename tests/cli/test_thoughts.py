"""think and thoughts: reasoning about intents and decisions, in the listing, in `show` and in the graph."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Server


def test_a_thought_about_an_intent_is_shown_with_the_decision_that_it_led_to(server: Server) -> None:
    server.ok("announce", "Rebuild the orders index", "--correlation-id", "c-1")
    server.ok("think", "A second index avoids\nthe lock \x1b[31m", "--intent", "c-1")
    decision = server.json("record", "Build a second index", "--share")["decision"]["id"]
    server.ok("intent", "close", "c-1", "--outcome", "success", "--decision", decision)
    shared = server.ok("think", "It takes twice the disk", "--decision", decision[:10], "--share")
    assert shared.startswith("tho-")
    assert shared.endswith(" is recorded.\n")
    shown = server.ok("show", decision)
    assert "thoughts" in shown
    assert "alice: A second index avoids the lock" in shown
    assert "\x1b[31m" not in shown
    assert "alice: It takes twice the disk" in shown
    assert server.json("show", decision)["decision"]["thoughts"]["count"] == 2
    of_bob = server("show", decision, agent="bob").stdout
    assert "It takes twice the disk" in of_bob
    assert "lock" not in of_bob
    assert "(…, decided, …, 2 thoughts)" in blank_out(server.ok("graph", decision), decision)
    assert ", 1 thought)" in server.ok("graph", decision, agent="bob")
    assert "1 thought#41;" in server("graph", decision, "--format", "mermaid", agent="bob").stdout
    assert "2 thoughts" in server.ok("graph", decision, "--format", "svg")


def blank_out(text: str, decision: str) -> str:
    """Return a line of a graph without the id and the day."""
    start, _, rest = text.partition(decision)
    status, _, thoughts = rest.rpartition(", ")
    return f"{start}…{status.rpartition(', ')[0]}, …, {thoughts}"


def test_thoughts_are_listed_with_what_they_are_about(server: Server) -> None:
    assert server.ok("thoughts") == "No matching thoughts.\n"
    decision = server.json("record", "Use a queue")["decision"]["id"]
    server.ok("think", "A queue decouples", "--decision", decision)
    server.ok("announce", "Use a queue", "--correlation-id", "c-1")
    server.ok("think", "A queue may grow", "--intent", "c-1", "--share")
    listed = server.ok("thoughts")
    assert listed.index("A queue may grow") < listed.index("A queue decouples")
    assert f"alice, {decision}, tho-" in listed
    assert "alice, c-1, shared, tho-" in listed
    assert [item["text"] for item in server.json("thoughts", "--decision", decision)["thoughts"]] == [
        "A queue decouples"
    ]
    assert len(server.json("thoughts", "--limit", "1")["thoughts"]) == 1
    assert "(private)" not in server.ok("show", decision)


@pytest.mark.parametrize("options", [(), ("--intent", "c-1", "--decision", "dec-none")])
def test_a_thought_has_exactly_one_target(server: Server, options: tuple[str, ...]) -> None:
    refused = server("think", "Hm", *options)
    assert refused.exit_code == 2
    assert "give either --intent or --decision." in refused.stderr


def test_more_thoughts_than_are_shown_are_counted(server: Server) -> None:
    decision = server.json("record", "Use a queue")["decision"]["id"]
    for number in range(22):
        server.ok("think", f"Step {number}", "--decision", decision)
    assert "2 before, which `cstp thoughts` lists" in server.ok("show", decision)
