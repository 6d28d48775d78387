"""A session of each coding agent, replayed against a real server by the hook as a process, event by event."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from cstp_grpc.client import CstpClient
from cstp_grpc.gen.cstp.v1 import types_pb2
from tests.agents.hooks.conftest import Shop
from tests.agents.hooks.payloads import LEARNED, RECORDINGS, host_of, names, payload
from tests.harness import TOKENS

CANNOT_ASK = {"codex", "cursor", "opencode", "pi"}
"""The agents whose hooks cannot ask their users: the call is denied until it is approved on the server."""


LAST_MESSAGES = {"last_assistant_message", "prompt_response", "text"}
"""The members with what the agent said last."""


class Session:
    """A session of an agent, whose hook is run for each event."""

    def __init__(self, shop: Shop, agent: str) -> None:
        self._shop = shop
        self._agent = agent

    def event(self, name: str, command: str = "npm test") -> Any:
        """Return a recorded event, with another command in it."""
        text = json.dumps(payload(name, self._shop.folder, agent=self._agent))
        return json.loads(text.replace("npm test", json.dumps(command)[1:-1]))

    def answer(self, event: Any) -> Any:
        """Return the hook's answer."""
        return self._shop.hook(event, agent=self._agent)

    def told(self, name: str, **changes: Any) -> str:
        """Return all texts in the answer to a recorded event."""
        return "\n".join(texts_in(self.answer({**self.event(name), **changes})))


def texts_in(answer: Any) -> Iterator[str]:
    """Yield the texts in an answer."""
    match answer:
        case str():
            yield answer
        case dict():
            for value in answer.values():
                yield from texts_in(value)


QUICK = {"claude-code", "cursor", "opencode"}
"""Agents that differ most in what they are told, and when, and in whom they can ask. The others are slow."""


def marked(agents: Iterable[str]) -> list[ParameterSet]:
    """Return agents as parameters."""
    return [pytest.param(each, marks=() if each in QUICK else pytest.mark.slow) for each in agents]


@pytest.fixture(params=marked(RECORDINGS))
def agent(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def session(shop: Shop, agent: str) -> Session:
    return Session(shop, agent)


def test_a_session_begins_with_the_rules_lessons_and_precedents(session: Session, agent: str) -> None:
    started = session.told("session_start")
    assert "Rules: agent-safety, shop (filesystem, git, databases, " in started
    assert 'cstp check --command "rm -rf /"' in started
    assert "block `force-push-blocked`: The history of a shared branch is not overwritten" in started
    assert '] "Take a backup first."' in started
    assert ("```cstp-learning" in started) is host_of(agent).hears_last_message
    assert ("`cstp learn report`" in started) is not host_of(agent).hears_last_message
    if "user_prompt_submit" in names(agent):
        assert 'Lesson: "Take a backup first."' in session.told("user_prompt_submit")


def test_a_dangerous_command_is_denied_with_a_suggestion(session: Session) -> None:
    assert session.answer(session.event("bash")) == {}
    denied = list(texts_in(session.answer(session.event("bash", "git push --force origin main"))))
    assert "deny" in denied
    reason = "\n".join(denied)
    assert '"The history of a branch that others build on would be overwritten" [force-push-protected, block]' in reason
    assert "Facts that were assumed" not in reason
    assert 'How to resolve it: "Push a commit that reverts' in reason


def test_what_a_person_may_approve_is_asked_or_denied_with_the_way_to_grant_it(session: Session, agent: str) -> None:
    asked = list(texts_in(session.answer(session.event("bash", "rm -rf src"))))
    assert ("deny" if agent in CANNOT_ASK else "ask") in asked
    reason = "\n".join(asked)
    assert "The command deletes a folder with all that is in it" in reason
    assert "cstp approvals grant apr-" in reason


def test_tools_of_mcp_are_judged(session: Session) -> None:
    denied = list(texts_in(session.answer(session.event("mcp"))))
    assert "deny" in denied
    assert "Entities are made by people" in "\n".join(denied)


def test_the_edit_of_a_governed_file_gets_its_contract_and_its_intent_an_end(
    session: Session, shop: Shop, agent: str
) -> None:
    before, after = (session.answer(session.event(name)) for name in ("edit", "edited"))
    assert not {"ask", "deny"} & set(texts_in(before))
    told, silent = (before, after) if host_of(agent).tells_before_tool else (after, before)
    assert "Money is in cents" in "\n".join(texts_in(told))
    assert "An order is never deleted" in "\n".join(texts_in(told))
    assert silent == {}
    call = host_of(agent).read_event(session.event("edit")).call_id
    with CstpClient(shop.app.target, TOKENS["alice"]) as client:
        (intent,) = client.list_intents(agent="alice", correlation_id=call)
        assert (intent.intent, list(intent.paths)) == ("Edit src/money.py", ["src/money.py"])
        assert intent.closing.outcome == types_pb2.OUTCOME_SUCCESS


@pytest.mark.parametrize("agent", marked(each for each in RECORDINGS if host_of(each).hears_last_message))
def test_what_was_learned_is_filed_at_the_end(session: Session, shop: Shop, agent: str) -> None:
    message = LEARNED.replace("Rates", f"For {agent} rates")
    (member,) = LAST_MESSAGES & session.event("stop").keys()
    told = session.told("stop", **{member: message})
    with CstpClient(shop.app.target, TOKENS["alice"]) as client:
        (learning,) = (each for each in client.intent_layer.list_learnings("shop") if agent in each.title)
        assert learning.id in told
        assert (learning.title, list(learning.paths)) == (f"For {agent} rates are percentages", ["src/money.py"])
        assert learning.detail == "TAX is in percent.\nDivide by 100 before you multiply."
