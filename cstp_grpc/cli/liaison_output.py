"""Output of chat sessions and their events for people."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from google.protobuf.struct_pb2 import Struct

from cstp_grpc.cli.answer_fields import (
    Rows,
    entry_text,
    enum_word,
    field_table,
    field_texts,
    format_instant,
    print_listing,
    print_table,
    rows_of,
    struct_to_line,
)
from cstp_grpc.cli.console import Console, Text
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.unicode_text import to_single_line
from cstp_grpc.contract import json_codec
from cstp_grpc.contract.errors import BlockingGuardrail
from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2
from cstp_grpc.modules.liaison.model import HISTORY_MEMBER

DELIVERY_STYLES = {"delivered": "green", "failed": "red"}
"""The styles of the outcome of a delivery."""
SHOWN_EVENT_FIELDS = ("routing_reason", "reason", "claimant", "role", "members", "task_id")
"""The fields of an event that its line shows."""


def print_opened_session(console: Console, answer: pb2.OpenSessionResponse) -> None:
    found = answer.chat_session
    since = "open" if answer.created else "open already"
    console.print(to_printable(f"{found.id} of {found.user_id} is {since}, with {found.active_agent}."))
    if answer.created:
        console.print(to_printable(f"  say  cstp liaison say TEXT --session {shlex.quote(found.id)}"), soft_wrap=True)


def print_session(console: Console, found: pb2.ChatSession) -> None:
    state = enum_word(pb2.SessionStatus, found.status)
    console.print(
        Text(to_printable(f"{found.id} of {found.user_id}, {state}, with {found.active_agent}"), style="bold")
    )
    console.print(field_table(rows_of(found, SESSION_ROWS)))


SESSION_ROWS: Rows = {
    "context": "{context}",
    "claimed by": "{claimed_by} until {claimed_until}",
    "opened": "{created_at}",
    "closed": "{closed_at}",
    "version": "{version}, routing epoch {routing_epoch}",
}


def print_conversation(console: Console, messages: Sequence[pb2.ChatMessage]) -> None:
    if not messages:
        console.print("Nothing was said yet.")
        return
    print_table(console, map(message_row, messages), "Conversation")


def message_row(message: pb2.ChatMessage) -> tuple[str | Text, ...]:
    said = Text(message.content)
    if message.HasField("metadata"):
        said.append(f"\n{to_printable(struct_to_line(message.metadata))}", style="dim")
    speaker = enum_word(pb2.MessageRole, message.role)
    # An assistant's message is from the agent that had the session then.
    if message.role == pb2.MESSAGE_ROLE_ASSISTANT:
        speaker = message.active_agent
    return f"  {message.sequence}", format_instant(message.sent_at), to_printable(speaker), said


def print_last_routing(console: Console, event: pb2.Event, share: pb2.Share | None) -> None:
    console.print(Text("Last routing", style="bold"))
    decision = json_codec.to_json(event.data).get("routing_decision", {})
    rows: list[tuple[str, str | Text]] = [(name, decision.get(name, "")) for name in ("from", "to", "reason")]
    rows.append(("at", format_instant(event.occurred_at)))
    if share:
        rows += rows_of(share, {"shared": lambda item: member_names(item.shared_context), **SHARE_ROWS})
    console.print(field_table(rows))


def delivery_text(share: pb2.Share) -> Text:
    state = enum_word(pb2.DeliveryState, share.delivery)
    text = Text(state, style=DELIVERY_STYLES.get(state, "yellow"))
    if share.attempts:
        text.append(f" after {count_noun(share.attempts, 'attempt')}", style="none")
    if share.HasField("task_id"):
        text.append(to_printable(f", task {share.task_id}"), style="none")
    return text


SHARE_ROWS: Rows = {"delivery": delivery_text, "share": "{share_id}"}


def print_routing_result(console: Console, answer: pb2.RouteToLiaisonAgentResponse) -> None:
    payload = answer.artifacts.liaison_agent_activation.semantic_payload
    console.print(to_printable(f"{answer.chat_session.id} is with {payload.liaison_agent_id}."))
    rows: Rows = {
        "reason": "{routing_reason}",
        "shared": lambda item: member_names(item.shared_context),
        "share": "{routing_decision.idempotency_key}",
    }
    console.print(field_table(rows_of(payload, rows)))


def print_share(console: Console, share: pb2.Share) -> None:
    console.print(to_printable(f"{share.target_agent} gets it from {share.source_agent}."))
    console.print(field_table(rows_of(share, SHARE_ROWS)))


def print_claim(console: Console, answer: pb2.ClaimSessionResponse) -> None:
    found, payload = answer.chat_session, answer.liaison_agent_activation.semantic_payload
    console.print(to_printable(f"{found.id} is with {found.claimed_by} until {format_instant(found.claimed_until)}."))
    context = json_codec.to_json(payload.shared_context)
    history = context.pop(HISTORY_MEMBER, [])
    rows = [
        ("claim", str(answer.claim_number)),
        ("reason", payload.routing_reason),
        ("context", struct_to_line(context)),
    ]
    console.print(field_table(rows))
    # The shared context is free-form: another tool may have put anything into this member.
    found_messages = history if isinstance(history, list) else [history]
    print_table(console, map(shared_message_row, found_messages), "Conversation")


def shared_message_row(said: object) -> tuple[str, str]:
    role, content = (said.get("role"), said.get("content")) if isinstance(said, dict) else ("", said)
    return f"  {to_single_line(str(role or ''))}", str(content)


def print_heartbeat(console: Console, answer: pb2.HeartbeatResponse) -> None:
    if answer.HasField("available_until"):
        console.print(
            to_printable(f"{answer.liaison_agent_id} is present until {format_instant(answer.available_until)}.")
        )
    else:
        console.print(to_printable(f"{answer.liaison_agent_id} is no longer present."))


def print_agents(console: Console, found: Sequence[pb2.LiaisonAgent]) -> None:
    def row(agent: pb2.LiaisonAgent) -> tuple[str | Text, ...]:
        state = Text("present", style="green") if agent.present else Text("absent", style="red")
        details = [
            *field_texts(agent, "{reason}", "since {since}"),
            count_noun(agent.chat_sessions, "session"),
            *field_texts(agent, "served by {served_by}", "last heartbeat {last_heartbeat}"),
        ]
        return state, enum_word(pb2.LiaisonAgentKind, agent.kind), entry_text(agent.liaison_agent_id, details)

    print_listing(console, found, row, "No pillar is configured.")


def print_sessions(console: Console, found: Sequence[pb2.ChatSession]) -> None:
    def row(item: pb2.ChatSession) -> tuple[str | Text, ...]:
        details = field_texts(item, "{active_agent}", "{message_count} messages", "claimed by {claimed_by}")
        entry = entry_text(f"{item.id} of {item.user_id}", details)
        return format_instant(item.created_at), enum_word(pb2.SessionStatus, item.status), entry

    print_listing(console, found, row, "No matching sessions.")


def print_blocks(console: Console, blocks: Sequence[BlockingGuardrail]) -> None:
    console.print(Text("Blocked", style="bold red").append("; nothing has changed", style="not bold"))
    label = Text("  blocks", style="red")
    print_table(console, ((label, to_printable(f"{block.guardrail_id}: {block.message}")) for block in blocks))


def event_line(event: pb2.Event) -> Text:
    user = f" of {event.user_id}" if event.HasField("user_id") else ""
    details = ", ".join(
        filter(None, [event.chat_session_id + user, event.agent, *event_facts(json_codec.to_json(event.data))])
    )
    line = Text(f"{event.sequence}  {format_instant(event.occurred_at)}  ")
    return line.append(to_printable(event.type), style="bold").append(f"  {to_single_line(details)}")


def event_facts(data: Mapping[str, object]) -> list[str]:
    """Return the values of an event's data that are shown; a list is joined by spaces."""
    shown = [data[name] for name in SHOWN_EVENT_FIELDS if data.get(name)]
    return [" ".join(map(str, value)) if isinstance(value, list) else str(value) for value in shown]


def member_names(content: Struct) -> str:
    return ", ".join(sorted(content)) or "nothing"
