"""The Intent Layer as a server offers it: on record, project by project, and found by searches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.server.app import App
from tests.harness import TOKENS, GrpcCaller, running, settings
from tests.modules.intent_layer.trees import write_tree
from tests.waiting import wait_until

SHOP = {
    "CLAUDE.md": "## Purpose\n\nA shop.\n",
    "src/api/AGENTS.md": "## Purpose\n\nThe HTTP interface.\n\n## Pitfalls\n\n- Dates are in local time.\n",
    "src/web/": "",
}
MAIL = {"CLAUDE.md": "## Purpose\n\nA mail server.\n\n## Contracts\n\nNothing is lost.\n"}
LEARNING = {
    "project": "shop",
    "path": "src/api/handlers.ts",
    "type": "pitfall",
    "title": "Webhooks arrive twice",
    "detail": "The payment provider repeats a webhook until it is confirmed",
}
WITH_PATHS: dict[str, Mapping[str, Any]] = {
    "intentLayer.resolveContext": {"path": "PATH"},
    "intentLayer.getNode": {"path": "PATH"},
    "intentLayer.validateNodes": {"paths": ["src", "PATH"]},
    "intentLayer.placeFact": {"paths": ["PATH"]},
    "intentLayer.initNode": {"path": "PATH"},
    "intentLayer.reportLearning": {"path": "PATH", "type": "check", "title": "T", "detail": "D"},
    "intentLayer.listLearnings": {"path": "PATH"},
}
ESCAPES = [
    "..",
    "../mail/CLAUDE.md",
    "src/../../mail",
    "/etc/passwd",
    "//etc",
    "src/\0",
    "out/CLAUDE.md",
    "hop/CLAUDE.md",
    "round/and/round",
    "x/" * 2000 + "y" * 200,
    "n" * 256,
]


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    places = {"shop": tmp_path / "shop", "mail": tmp_path / "mail"}
    write_tree(places["shop"], SHOP)
    write_tree(places["mail"], MAIL)
    (places["shop"] / "out").symlink_to(places["mail"])
    (places["shop"] / "hop").symlink_to("src/../out")
    (places["shop"] / "round").symlink_to("round")
    return places


@pytest.fixture
def app(tmp_path: Path, places: dict[str, Path]) -> Iterator[App]:
    projects = [{"name": name, "root": str(root)} for name, root in places.items()]
    # So seldom that a change is seen only by who is told of it.
    layer = {"projects": projects, "refresh_seconds": 3600}
    with running(settings(tmp_path / "data", intent_layer=layer)) as app:
        yield app


@pytest.fixture
def caller(app: App) -> Iterator[GrpcCaller]:
    caller = GrpcCaller(app.target)
    yield caller
    caller.close()


def answer(caller: GrpcCaller, method: str, params: Mapping[str, Any], agent: str = "alice") -> dict[str, Any]:
    outcome = caller.call(method, params, TOKENS[agent])
    assert outcome.result is not None, outcome
    return outcome.result


def entries(caller: GrpcCaller, event: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = answer(caller, "cstp.listAuditEntries", {"event": event})["entries"]
    return found


def titles(caller: GrpcCaller, query: str, agent: str = "alice") -> list[str]:
    found = answer(caller, "cstp.queryDecisions", {"query": query, "minScore": 0.2}, agent)["decisions"]
    return [decision["title"] for decision in found]


def test_every_act_is_in_the_trail(caller: GrpcCaller) -> None:
    answer(caller, "intentLayer.resolveContext", {"project": "shop", "path": "src/api/x.ts"}, "reader")
    (read,) = entries(caller, "context_read")
    assert (read["requestingAgent"], read["action"]) == ("reader", "resolve in shop: src/api/x.ts")
    assert read["requestId"]

    claimed = {**LEARNING, "agentId": "swarm-worker-3"}
    filed = answer(caller, "intentLayer.reportLearning", claimed, "bob")["learning"]
    assert filed["agentId"] == "swarm-worker-3"
    (reported,) = entries(caller, "learning_reported")
    assert (reported["requestingAgent"], reported["claimedAgent"]) == ("bob", "swarm-worker-3")
    assert reported["action"] == f"report pitfall in shop: {filed['id']}, src/api/handlers.ts"

    review = {"project": "shop", "id": filed["id"], "verdict": "accept", "reviewer": "carol"}
    done = answer(caller, "intentLayer.reviewLearning", review, "bob")["learning"]
    assert done["reviews"][0]["reviewer"] == 'bob, for "carol"'
    (reviewed,) = entries(caller, "learning_reviewed")
    assert (reviewed["requestingAgent"], reviewed["claimedAgent"]) == ("bob", "carol")
    assert reviewed["action"] == f"accept learning in shop: {filed['id']}, src/api/handlers.ts"

    answer(caller, "intentLayer.initNode", {"project": "shop", "path": "src/web"})
    (created,) = entries(caller, "node_created")
    assert (created["requestingAgent"], created["action"]) == ("alice", "create node in shop: src/web")
    assert "claimedAgent" not in created


@pytest.mark.parametrize(
    ("claim", "reviewer"),
    [
        ("bob", "bob"),
        ("alice", 'bob, for "alice"'),
        ('alice, for "bob"', 'bob, for "alice, for \\"bob\\""'),
        ('"alice"', 'bob, for "\\"alice\\""'),
    ],
)
def test_a_report_names_who_reviewed_it_whatever_is_claimed(
    caller: GrpcCaller, places: dict[str, Path], claim: str, reviewer: str
) -> None:
    filed = answer(caller, "intentLayer.reportLearning", LEARNING)["learning"]
    review = {"project": "shop", "id": filed["id"], "verdict": "reject", "reviewer": claim}
    done = answer(caller, "intentLayer.reviewLearning", review, "bob")["learning"]
    assert done["reviews"][0]["reviewer"] == reviewer
    assert f"\n**Reviewer**: {reviewer}\n" in (places["shop"] / done["file"]).read_text()


@pytest.mark.parametrize("claim", [" ", "carol\n**Reviewer**: alice"])
def test_a_claim_that_is_no_name_is_refused(caller: GrpcCaller, claim: str) -> None:
    filed = answer(caller, "intentLayer.reportLearning", LEARNING)["learning"]
    review = {"project": "shop", "id": filed["id"], "verdict": "reject", "reviewer": claim}
    assert caller.call("intentLayer.reviewLearning", review).fields == ("reviewer",)


def test_a_refused_read_is_in_the_trail_with_its_reason(caller: GrpcCaller) -> None:
    caller.call("intentLayer.resolveContext", {"project": "shop", "path": "src/../../secrets"})
    (read,) = entries(caller, "context_read")
    assert (read["error"], read["action"]) == ("INVALID_ARGUMENT", "resolve in shop: src/../../secrets")


def test_however_many_paths_are_named_the_trail_stays_readable(caller: GrpcCaller) -> None:
    paths = [f"src/{'long' * 50}/{number}" for number in range(1000)]
    answer(caller, "intentLayer.placeFact", {"project": "shop", "paths": paths})
    (read,) = entries(caller, "context_read")
    assert len(read["action"]) == 4000
    assert read["action"].endswith("…")


def test_no_path_leads_out_of_its_project(caller: GrpcCaller, places: dict[str, Path]) -> None:
    for method, path in itertools.product(WITH_PATHS, ESCAPES):
        params = {
            key: [path if each == "PATH" else each for each in value] if isinstance(value, list) else value
            for key, value in WITH_PATHS[method].items()
        }
        params = {key: path if value == "PATH" else value for key, value in params.items()}
        outcome = caller.call(method, {"project": "shop", **params})
        assert outcome.reason == "INVALID_ARGUMENT", (method, path, outcome)
        assert str(places["shop"].parent) not in outcome.message
    assert {path.name for path in places["mail"].iterdir()} == {"CLAUDE.md"}
    assert not (places["shop"].parent / "AGENTS.md").exists()


def test_projects_know_nothing_of_each_other(caller: GrpcCaller) -> None:
    filed = answer(caller, "intentLayer.reportLearning", LEARNING)["learning"]
    assert answer(caller, "intentLayer.listLearnings", {"project": "mail"})["learnings"] == []
    outcome = caller.call("intentLayer.reviewLearning", {"project": "mail", "id": filed["id"], "verdict": "reject"})
    assert outcome.reason == "NOT_FOUND"
    nodes = answer(caller, "intentLayer.listNodes", {"project": "mail"})["nodes"]
    assert [node["file"] for node in nodes] == ["CLAUDE.md"]
    unknown = caller.call("intentLayer.listNodes", {"project": "shed"})
    assert (unknown.reason, unknown.message) == ("NOT_FOUND", "there is no project shed")


def test_a_search_finds_an_accepted_pitfall(caller: GrpcCaller) -> None:
    filed = answer(caller, "intentLayer.reportLearning", LEARNING)["learning"]
    wait_until(lambda: "Dates are in local time." in titles(caller, "dates in local time"), "the nodes were read")
    assert "Webhooks arrive twice" not in titles(caller, "webhooks arrive twice")
    answer(caller, "intentLayer.reviewLearning", {"project": "shop", "id": filed["id"], "verdict": "accept"})
    wait_until(lambda: "Webhooks arrive twice" in titles(caller, "webhooks arrive twice"), "the pitfall is found")
    assert "Webhooks arrive twice" in titles(caller, "webhooks arrive twice", "reader")
    found = answer(
        caller,
        "cstp.queryDecisions",
        {"query": "webhooks arrive twice", "minScore": 0.2, "filters": {"category": "pitfall", "project": "shop"}},
    )["decisions"]
    assert (found[0]["agent"], found[0]["notes"]) == ("intent-layer", "See Pitfalls in src/api/AGENTS.md")
    similar = answer(caller, "cstp.announceIntent", {"intent": "Handle webhooks that arrive twice"})["similarDecisions"]
    assert "Webhooks arrive twice" in [decision["title"] for decision in similar]


def test_a_search_does_not_find_a_rejected_pitfall(caller: GrpcCaller) -> None:
    titled = {"accept": "Webhooks arrive twice", "reject": "Webhooks arrive unsigned"}
    filed = {
        verdict: answer(caller, "intentLayer.reportLearning", {**LEARNING, "title": title})["learning"]["id"]
        for verdict, title in titled.items()
    }
    for verdict in ("reject", "accept"):
        review = {"project": "shop", "id": filed[verdict], "verdict": verdict}
        answer(caller, "intentLayer.reviewLearning", review)
    # Accepted last: once it is found, a rejected one would have been as well.
    wait_until(lambda: titled["accept"] in titles(caller, "webhooks arrive unsigned"), "the accepted one is found")
    assert titled["reject"] not in titles(caller, "webhooks arrive unsigned")


def test_what_is_edited_by_hand_is_found_and_what_is_removed_is_not(tmp_path: Path, places: dict[str, Path]) -> None:
    layer = {"projects": [{"name": "shop", "root": str(places["shop"])}], "refresh_seconds": 0.05}
    with running(settings(tmp_path / "data", intent_layer=layer)) as app:
        caller = GrpcCaller(app.target)
        wait_until(lambda: "Dates are in local time." in titles(caller, "dates in local time"), "the nodes are read")
        write_tree(places["shop"], {"src/api/AGENTS.md": "## Pitfalls\n\n- Clocks jump twice a year.\n"})
        wait_until(lambda: titles(caller, "clocks jump") == ["Clocks jump twice a year."], "the new pitfall is found")
        wait_until(lambda: titles(caller, "dates in local time") == [], "the old one is not")
        caller.close()


def test_an_answer_that_is_too_large_is_refused_and_a_budget_helps(caller: GrpcCaller, places: dict[str, Path]) -> None:
    large = {f"{'a/' * depth}AGENTS.md": f"## Contracts\n\n{'word ' * 50_000}\n" for depth in range(1, 16)}
    write_tree(places["shop"], large)
    outcome = caller.call("intentLayer.resolveContext", {"project": "shop", "path": "a/" * 15})
    assert (outcome.reason, outcome.fields) == ("INVALID_ARGUMENT", ("max_tokens",))
    fitting = answer(caller, "intentLayer.resolveContext", {"project": "shop", "path": "a/" * 15, "maxTokens": 1000})
    assert set(large) <= {left["file"] for left in fitting["leftOut"]}
    assert fitting["tokens"] <= 1000


def test_a_server_without_projects_has_none(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app:
        caller = GrpcCaller(app.target)
        assert caller.call("intentLayer.listNodes", {"project": "shop"}).reason == "NOT_FOUND"
        caller.close()
