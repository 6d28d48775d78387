"""Texts of other agents neither steer the terminal of a person nor begin a line of their own."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from google.protobuf.message import Message
from hypothesis import given

from cstp_grpc.cli import (
    advice_output,
    approval_output,
    calibration_output,
    decision_output,
    liaison_output,
    rule_output,
    tokens,
)
from cstp_grpc.cli.console import Console
from cstp_grpc.cli.output import json_text
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.gen.cstp.v1 import (
    admin_pb2,
    approvals_pb2,
    audit_pb2,
    calibration_pb2,
    cstp_pb2,
    guardrails_pb2,
    intents_pb2,
    journal_pb2,
)
from cstp_grpc.gen.liaison.v1 import liaison_pb2
from tests.hostile_texts import ORDER, fill, hostile_texts, steering_characters
from tests.named_case import named_case

Show = Callable[[Console, Any], object]


def as_json(show: Show) -> Show:
    return lambda console, message: show(console, to_json(message))


SHOWN: list[tuple[Show, type[Message]]] = [
    (as_json(advice_output.print_query_answer), cstp_pb2.QueryDecisionsResponse),
    (as_json(advice_output.print_check_answer), cstp_pb2.CheckGuardrailsResponse),
    (as_json(advice_output.print_announce_answer), cstp_pb2.AnnounceIntentResponse),
    (decision_output.print_closed_intent, intents_pb2.CloseIntentResponse),
    (decision_output.print_decision, journal_pb2.Decision),
    (decision_output.print_duplicates, journal_pb2.FindDuplicateDecisionsResponse),
    (lambda console, item: decision_output.print_decisions(console, [item]), journal_pb2.Decision),
    (decision_output.print_due_reviews, journal_pb2.ListDecisionsResponse),
    (lambda console, item: decision_output.print_audit_entries(console, [item]), audit_pb2.AuditEntry),
    (lambda console, item: decision_output.print_intents(console, [item]), audit_pb2.IntentRecord),
    (lambda console, item: console.print(decision_output.change_line(item)), journal_pb2.WatchDecisionsResponse),
    (lambda console, item: console.print(decision_output.intent_line(item)), intents_pb2.WatchedIntent),
    (lambda console, item: approval_output.print_approvals(console, [item]), approvals_pb2.Approval),
    (lambda console, item: console.print(approval_output.approval_line(item)), approvals_pb2.Approval),
    (approval_output.print_approval, approvals_pb2.Approval),
    (approval_output.print_decision, approvals_pb2.Approval),
    (calibration_output.print_calibration, calibration_pb2.GetCalibrationResponse),
    (calibration_output.print_patterns, calibration_pb2.GetPatternsResponse),
    (rule_output.print_guardrails, guardrails_pb2.ListGuardrailsResponse),
    (rule_output.print_inputs, guardrails_pb2.ListInputsResponse),
    (rule_output.print_rulebooks, guardrails_pb2.GetRulebookResponse),
    (rule_output.print_explanations, guardrails_pb2.ExplainGuardrailsResponse),
    (liaison_output.print_opened_session, liaison_pb2.OpenSessionResponse),
    (liaison_output.print_session, liaison_pb2.ChatSession),
    (lambda console, item: liaison_output.print_sessions(console, [item]), liaison_pb2.ChatSession),
    (lambda console, item: liaison_output.print_conversation(console, [item]), liaison_pb2.ChatMessage),
    (lambda console, item: liaison_output.print_last_routing(console, item, None), liaison_pb2.Event),
    (lambda console, item: console.print(liaison_output.event_line(item)), liaison_pb2.Event),
    (liaison_output.print_routing_result, liaison_pb2.RouteToLiaisonAgentResponse),
    (liaison_output.print_share, liaison_pb2.Share),
    (liaison_output.print_claim, liaison_pb2.ClaimSessionResponse),
    (liaison_output.print_heartbeat, liaison_pb2.HeartbeatResponse),
    (lambda console, item: liaison_output.print_agents(console, [item]), liaison_pb2.LiaisonAgent),
    (lambda console, item: tokens.print_tokens(console, [item]), admin_pb2.AgentToken),
]


@given(hostile_texts)
def test_no_field_of_an_answer_reaches_a_terminal_raw(text: str) -> None:
    for show, kind in SHOWN:
        with named_case(show, kind):
            message = fill(kind(), text)
            stream = io.StringIO()
            show(Console(stream, width=100_000), message)
            printed = stream.getvalue()
            assert steering_characters(printed) == []
            # A text of several lines is indented below its first one, which may begin with any signs.
            assert [line for line in printed.splitlines() if line.startswith((ORDER, "## Suggestions"))] == []


@given(hostile_texts)
def test_json_is_unchanged_and_steers_no_terminal(text: str) -> None:
    content = to_json(fill(journal_pb2.Decision(), text))
    printed = json_text(content)
    assert json.loads(printed) == content
    assert steering_characters(printed) == []
