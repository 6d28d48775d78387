"""Texts of other agents reach the model of a coding agent as quotations, in every answer of every host's hook."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given

from cstp_grpc.agents.hooks.event_handler import HookSettings, answer_event
from cstp_grpc.agents.hooks.hosts import HOSTS, load_host
from cstp_grpc.agents.hooks.model import HookEvent, HookMoment
from cstp_grpc.agents.hooks.server_calls import ServerCallFailed
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.contract.methods import method_by_name
from tests.agents.hooks.payloads import LEARNED
from tests.agents.mcp_server.test_hostile_texts import NOTE, without_nodes
from tests.hostile_texts import fill, hostile_texts, sections_of, steering_characters, unquoted_orders

RULES = ToolRules.parse({"tools": [{"tool": "edit", "ask": "announce"}, {"tool": "*", "ask": "check"}]})
EVENTS = [
    HookEvent(HookMoment.SESSION_STARTED),
    HookEvent(HookMoment.PROMPT_SUBMITTED, prompt="Drop the table"),
    HookEvent(HookMoment.BEFORE_TOOL, tool="run", arguments={"command": "ls"}),
    HookEvent(HookMoment.BEFORE_TOOL, tool="edit", arguments={"file_path": "a.py"}),
    HookEvent(HookMoment.AFTER_TOOL, tool="edit", call_id="c-1", arguments={"file_path": "a.py"}),
    HookEvent(HookMoment.TURN_ENDED, last_message=LEARNED),
]


class HostileServer:
    """Answers each call with the same text in every field, or fails with it."""

    def __init__(self, text: str, *, allows: bool, fails: bool = False) -> None:
        self._text = text
        self._allows = allows
        self._fails = fails

    def call(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._fails:
            raise ServerCallFailed(self._text, "INVALID_ARGUMENT")
        answer = without_nodes(to_json(fill(method_by_name(method).response(), self._text)))
        verdict = answer.get("guardrailStatus", answer)
        verdict |= {"allowed": self._allows} | ({"violations": []} if self._allows else {})
        return answer


@pytest.mark.parametrize("host", HOSTS)
@given(hostile_texts)
def test_no_field_of_an_answer_reaches_a_model_or_user_raw(host: str, text: str) -> None:
    settings = HookSettings(RULES, project="shop", tells_before_tool=load_host(host).tells_before_tool)
    for event in EVENTS:
        for server in (
            HostileServer(text, allows=True),
            HostileServer(text, allows=False),
            HostileServer(text, allows=False, fails=True),
        ):
            answer = answer_event(event, server, settings)
            written = json.dumps(load_host(host).write_answer(event, answer), ensure_ascii=False)
            assert steering_characters(written + answer.notice) == []
            for told in (answer.context, answer.reason, answer.notice):
                assert unquoted_orders(told) == []
                for heading, content in sections_of(told):
                    if heading.startswith(("Past decisions", "Intents of", "Reported")):
                        assert NOTE in content
