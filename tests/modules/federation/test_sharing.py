"""What peers find: a part of what is shared, whichever way they ask."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.contract.enums import Permission
from cstp_grpc.platform.config import Settings
from tests.harness import TOKENS, GrpcCaller, running
from tests.modules.federation.agents import PEER_TOKEN, agent_settings, peer

pytestmark = pytest.mark.above_stores

SHARE = {"categories": ["deployment", "architecture"], "tags": ["api", "data"]}
SHARED = {"visibility": "shared"}
NAMED_TOKEN = "named-secret-token"
TITLES: dict[str, dict[str, Any]] = {
    "Queue the covered deployment": {"category": "deployment", "tags": ["api", "slow"], "outcome": "failure", **SHARED},
    "Queue the covered architecture": {"category": "architecture", "tags": ["data"], **SHARED},
    "Queue the untagged deployment": {"category": "deployment", "tags": ["slow"], **SHARED},
    "Queue the tagged staffing": {"category": "staffing", "tags": ["api"], "outcome": "failure", **SHARED},
    "Queue without anything": {**SHARED},
    "Queue the private deployment": {"category": "deployment", "tags": ["api"]},
}
COVERED = {"Queue the covered deployment", "Queue the covered architecture"}
ALL_SHARED = set(TITLES) - {"Queue the private deployment"}


def with_friends(wanted: Settings) -> Settings:
    """Return settings whose peers may do more, with one that is a peer by its name alone."""
    everything = sorted(Permission)
    alice, *_ = wanted.auth.tokens
    friend = {"name": "friend", "token": PEER_TOKEN, "permissions": everything, "peer": True}
    named = {"name": "b", "token": NAMED_TOKEN, "permissions": everything}
    auth = type(wanted.auth)(tokens=[alice, friend, named])  # type: ignore[list-item]
    return wanted.model_copy(update={"auth": auth})


class Agent:
    """An agent with decisions of alice's, and who asks it."""

    def __init__(self, caller: GrpcCaller) -> None:
        self._caller = caller
        self.ids: dict[str, str] = {}

    def call(self, method: str, token: str = TOKENS["alice"], **params: Any) -> dict[str, Any]:
        outcome = self._caller.call(method, params, token)
        assert outcome.result is not None, outcome
        return outcome.result

    def reason(self, method: str, token: str, **params: Any) -> str | None:
        return self._caller.call(method, params, token).reason

    def record(self, title: str, token: str = TOKENS["alice"], links: Any = None, **more: Any) -> None:
        answer = self.call("cstp.recordDecision", token, decision={"title": title, **more}, links=links or {})
        self.ids[title] = answer["decision"]["id"]

    def queried(self, token: str, **more: Any) -> set[str]:
        answer = self.call("cstp.queryDecisions", token, query="queue", minScore=0, limit=50, **more)
        return {each["title"] for each in answer["decisions"]}

    def listed(self, token: str) -> set[str]:
        found: set[str] = set()
        page = ""
        while True:
            answer = self.call("cstp.listDecisions", token, pageSize=1, pageToken=page)
            found |= {each["title"] for each in answer["decisions"]}
            page = answer["nextPageToken"]
            if not page:
                return found

    def told(self, token: str, **more: Any) -> dict[str, Any]:
        return self.call("cstp.announceIntent", token, intent="Queue the deployment", **more)


@pytest.fixture
def agent(database_url: str, tmp_path: Path) -> Iterator[Agent]:
    wanted = with_friends(agent_settings(tmp_path, "a", peers=[peer("b", "grpc://127.0.0.1:1")], share=SHARE))
    wanted = wanted.model_copy(update={"storage": wanted.storage.model_copy(update={"url": database_url})})
    with running(wanted) as app, closing(GrpcCaller(app.target)) as caller:
        made = Agent(caller)
        for title, content in TITLES.items():
            made.record(title, **content)
        yield made


@pytest.mark.parametrize("token", [PEER_TOKEN, NAMED_TOKEN])
def test_a_peer_finds_what_is_of_a_shared_category_and_has_a_shared_tag(agent: Agent, token: str) -> None:
    assert agent.queried(token) == agent.listed(token) == COVERED
    assert agent.queried(token, filters={"category": "staffing"}) == set()
    answer = agent.told(token)
    assert {each["title"] for each in answer["similarDecisions"]} == COVERED
    assert "staffing" not in str(answer)
    assert agent.queried(TOKENS["alice"]) == set(TITLES)


def test_what_a_peer_does_not_find_is_not_there_for_it(agent: Agent) -> None:
    for title, identifier in agent.ids.items():
        expected = None if title in COVERED else "NOT_FOUND"
        assert agent.reason("cstp.getDecision", PEER_TOKEN, id=identifier) == expected
        review = {"id": identifier, "outcome": "success"}
        assert agent.reason("cstp.reviewDecision", PEER_TOKEN, **review) == expected
        shared = "PERMISSION_DENIED" if title in COVERED else "NOT_FOUND"
        for method in ("cstp.shareDecision", "cstp.unshareDecision"):
            assert agent.reason(method, PEER_TOKEN, id=identifier) == shared


def test_links_to_what_a_peer_does_not_find_are_not_shown_to_it(agent: Agent) -> None:
    targets = [agent.ids["Queue the tagged staffing"], agent.ids["Queue the covered architecture"]]
    agent.record("Queue with links", links={"relatesTo": targets}, **TITLES["Queue the covered deployment"])
    identifier = agent.ids["Queue with links"]
    shown = [
        agent.call("cstp.getDecision", PEER_TOKEN, id=identifier),
        agent.call("cstp.reviewDecision", PEER_TOKEN, id=identifier, outcome="success"),
    ]
    listed = agent.call("cstp.listDecisions", PEER_TOKEN, pageSize=50)["decisions"]
    found = [answer["decision"] for answer in shown] + [each for each in listed if each["id"] == identifier]
    assert [each["links"]["relatesTo"] for each in found] == [targets[1:]] * 3


def test_nothing_that_a_peer_recorded_is_told_to_its_callers(tmp_path: Path) -> None:
    with ExitStack() as opened:
        c = opened.enter_context(running(with_friends(agent_settings(tmp_path / "c", "c"))))
        b = opened.enter_context(running(agent_settings(tmp_path / "b", "b", peers=[peer("c", f"grpc://{c.target}")])))
        through_b, at_c = (Agent(opened.enter_context(closing(GrpcCaller(app.target)))) for app in (b, c))
        at_c.record("Queue the secret of b", PEER_TOKEN)
        at_c.record("Queue what all may know", **SHARED)
        assert at_c.queried(PEER_TOKEN) == {"Queue the secret of b", "Queue what all may know"}
        assert through_b.queried(TOKENS["alice"], scope="federated") == {"Queue what all may know"}
        answer = through_b.told(TOKENS["alice"], scope="federated")
        assert {each["title"] for each in answer["similarDecisions"]} == {"Queue what all may know"}


def test_what_a_peer_recorded_itself_is_there_for_it(agent: Agent) -> None:
    agent.record("Queue of a friend", PEER_TOKEN, category="staffing")
    assert agent.queried(PEER_TOKEN) == agent.listed(PEER_TOKEN) == COVERED | {"Queue of a friend"}
    assert agent.reason("cstp.shareDecision", PEER_TOKEN, id=agent.ids["Queue of a friend"]) is None
    assert "Queue of a friend" not in agent.queried(NAMED_TOKEN)


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        ({}, ALL_SHARED),
        (
            {"categories": ["deployment"]},
            {"Queue the covered deployment", "Queue the untagged deployment"},
        ),
        ({"tags": ["api"]}, {"Queue the covered deployment", "Queue the tagged staffing"}),
        ({"categories": ["unknown"]}, set()),
    ],
)
def test_categories_and_tags_narrow_where_they_are_given(
    tmp_path: Path, share: dict[str, Any], expected: set[str]
) -> None:
    wanted = with_friends(agent_settings(tmp_path, "a", share=share))
    with running(wanted) as app, closing(GrpcCaller(app.target)) as caller:
        agent = Agent(caller)
        for title, content in TITLES.items():
            agent.record(title, **content)
        assert agent.queried(PEER_TOKEN) == agent.listed(PEER_TOKEN) == expected
        # By its name it would be a peer if one were called so.
        assert agent.queried(NAMED_TOKEN) == ALL_SHARED


def test_what_other_agents_remember_is_not_passed_on_to_a_peer_that_finds_a_part(tmp_path: Path) -> None:
    with ExitStack() as opened:
        far = opened.enter_context(running(agent_settings(tmp_path / "far", "far")))
        peers = [peer("far", f"grpc://{far.target}", role="required")]
        near_settings = with_friends(agent_settings(tmp_path / "near", "near", peers=peers, share=SHARE, max_hops=2))
        near = opened.enter_context(running(near_settings))
        callers = [opened.enter_context(closing(GrpcCaller(app.target))) for app in (far, near)]
        theirs, ours = (Agent(caller) for caller in callers)
        theirs.record("Queue what is far away", outcome="failure", **SHARED)
        ours.record("Queue the covered deployment", **TITLES["Queue the covered deployment"])
        theirs.call("cstp.announceIntent", intent="Queue the deployment far away", category="deployment", **SHARED)
        federated = {"scope": "federated"}
        assert ours.queried(TOKENS["alice"], **federated) == {"Queue what is far away", "Queue the covered deployment"}
        assert ours.queried(PEER_TOKEN, **federated) == COVERED & {"Queue the covered deployment"}
        (related,) = ours.told(TOKENS["alice"], **federated)["relatedIntents"]
        assert (related["origin"], related["intent"]) == ("far", "Queue the deployment far away")
        answer = ours.told(PEER_TOKEN, **federated)
    assert "far away" not in str(answer)
    assert [(response["agent"], response["status"]) for response in answer["responses"]] == [("far", "answered")]
    assert answer["responses"][0]["guardrailStatus"]["allowed"] is True
