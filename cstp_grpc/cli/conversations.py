"""Chat sessions and what happens to them, as people read them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.struct_pb2 import Struct
from rich.console import Console
from rich.text import Text

from cstp_grpc.cli.listing import Listing
from cstp_grpc.cli.output import json_text, printable
from cstp_grpc.cli.render import entry, moment, word
from cstp_grpc.client import codec
from cstp_grpc.errors import Block
from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2
from cstp_grpc.liaison.model import HISTORY

STATES = {"delivered": "green", "failed": "red"}
"""The styles of what became of a delivery."""
SHOWN_DATA = ("routing_reason", "reason", "claimant", "role", "members", "task_id")
"""What a line about an event tells of its data."""


def opened(console: Console, answer: pb2.OpenSessionResponse) -> None:
    """Print a session that was opened, or was open already."""
    found = answer.chat_session
    since = "open" if answer.created else "open already"
    console.print(printable(f"{found.id} of {found.user_id} is {since}, with {found.active_agent}."))
    if answer.created:
        console.print(printable(f"  say  cstp liaison say TEXT --session {shlex.quote(found.id)}"), soft_wrap=True)


def session(console: Console, found: pb2.ChatSession) -> None:
    """Print a session."""
    state = word(pb2.SessionStatus, found.status)
    console.print(Text(printable(f"{found.id} of {found.user_id}, {state}, with {found.active_agent}"), style="bold"))
    claim = f"{found.claimed_by} until {moment(found.claimed_until)}" if found.HasField("claimed_by") else ""
    rows = [
        ("context", compact(found.context)),
        ("claimed by", claim),
        ("opened", moment(found.created_at)),
        ("closed", moment(found.closed_at) if found.HasField("closed_at") else ""),
        ("version", f"{found.version}, routing epoch {found.routing_epoch}"),
    ]
    console.print(fields(rows))


def fields(rows: Iterable[tuple[str, str | Text]]) -> Listing:
    """Return a table of names and values, without those that are empty."""
    table = Listing()
    for name, value in rows:
        if value:
            table.add_row(Text(f"  {name}", style="dim"), printable(value) if isinstance(value, str) else value)
    return table


def conversation(console: Console, messages: Sequence[pb2.ChatMessage]) -> None:
    """Print the messages of a session."""
    if not messages:
        console.print("Nothing was said yet.")
        return
    console.print(Text("Conversation", style="bold"))
    table = Listing()
    for message in messages:
        said = Text(printable(message.content))
        if message.HasField("metadata"):
            said.append(f"\n{printable(compact(message.metadata))}", style="dim")
        speaker = word(pb2.MessageRole, message.role)
        if message.role == pb2.MESSAGE_ROLE_ASSISTANT:
            speaker = message.active_agent
        table.add_row(f"  {message.sequence}", moment(message.sent_at), printable(speaker), said)
    console.print(table)


def routing(console: Console, event: pb2.Event, share: pb2.Share | None) -> None:
    """Print the last routing of a session, by its event and what it shared."""
    console.print(Text("Last routing", style="bold"))
    decision = codec.to_json(event.data).get("routing_decision", {})
    rows: list[tuple[str, str | Text]] = [
        ("from", decision.get("from", "")),
        ("to", decision.get("to", "")),
        ("reason", decision.get("reason", "")),
        ("at", moment(event.occurred_at)),
    ]
    if share:
        rows += [("shared", members(share.shared_context)), ("delivery", delivery(share)), ("share", share.share_id)]
    console.print(fields(rows))


def delivery(share: pb2.Share) -> Text:
    """Return what became of a delivery, in its colour."""
    state = word(pb2.DeliveryState, share.delivery)
    text = Text(state, style=STATES.get(state, "yellow"))
    if share.attempts:
        text.append(f" after {share.attempts} attempt{'s' if share.attempts > 1 else ''}", style="none")
    if share.HasField("task_id"):
        text.append(printable(f", task {share.task_id}"), style="none")
    return text


def routed(console: Console, answer: pb2.RouteToLiaisonAgentResponse) -> None:
    """Print what came of a routing."""
    payload = answer.artifacts.liaison_agent_activation.semantic_payload
    console.print(printable(f"{answer.chat_session.id} is with {payload.liaison_agent_id}."))
    console.print(
        fields(
            [
                ("reason", payload.routing_reason),
                ("shared", members(payload.shared_context)),
                ("share", payload.routing_decision.idempotency_key),
            ]
        )
    )


def shared(console: Console, share: pb2.Share) -> None:
    """Print what was shared."""
    console.print(printable(f"{share.target_agent} gets it from {share.source_agent}."))
    console.print(fields([("delivery", delivery(share)), ("share", share.share_id)]))


def claimed(console: Console, answer: pb2.ClaimSessionResponse) -> None:
    """Print a session that was claimed, and what came with it."""
    found, payload = answer.chat_session, answer.liaison_agent_activation.semantic_payload
    console.print(printable(f"{found.id} is with {found.claimed_by} until {moment(found.claimed_until)}."))
    context = codec.to_json(payload.shared_context)
    history = context.pop(HISTORY, [])
    claim = str(answer.claim_number)
    console.print(fields([("claim", claim), ("reason", payload.routing_reason), ("context", compact_json(context))]))
    table = Listing()
    for said in history if isinstance(history, list) else [history]:
        role, content = (said.get("role"), said.get("content")) if isinstance(said, dict) else ("", said)
        table.add_row(f"  {one_line(str(role or ''))}", printable(str(content)))
    if table.row_count:
        console.print(Text("Conversation", style="bold"))
        console.print(table)


def present(console: Console, answer: pb2.HeartbeatResponse) -> None:
    """Print until when a liaison agent counts as available."""
    if answer.HasField("available_until"):
        console.print(printable(f"{answer.liaison_agent_id} is there until {moment(answer.available_until)}."))
    else:
        console.print(printable(f"{answer.liaison_agent_id} is not there any more."))


def agents(console: Console, found: Sequence[pb2.LiaisonAgent]) -> None:
    """Print a listing of liaison agents."""
    table = Listing()
    for agent in found:
        state = Text("present", style="green") if agent.present else Text("absent", style="red")
        since = f"since {moment(agent.since)}" if agent.HasField("since") else ""
        served = f"served by {agent.served_by}" if agent.served_by else ""
        beaten = f"last heartbeat {moment(agent.last_heartbeat)}" if agent.HasField("last_heartbeat") else ""
        held = f"{agent.chat_sessions} session{'' if agent.chat_sessions == 1 else 's'}"
        kind = word(pb2.LiaisonAgentKind, agent.kind)
        table.add_row(state, kind, entry(agent.liaison_agent_id, [agent.reason, since, held, served, beaten]))
    console.print(table if found else "No pillar is configured.")


def sessions(console: Console, found: Sequence[pb2.ChatSession]) -> None:
    """Print a listing of sessions."""
    table = Listing()
    for item in found:
        claim = f"claimed by {item.claimed_by}" if item.HasField("claimed_by") else ""
        told = entry(f"{item.id} of {item.user_id}", [item.active_agent, f"{item.message_count} messages", claim])
        table.add_row(moment(item.created_at), word(pb2.SessionStatus, item.status), told)
    console.print(table if found else "There are no such sessions.")


def blocked(console: Console, blocks: Sequence[Block]) -> None:
    """Print which guardrails block a hand-over."""
    console.print(Text("Blocked", style="bold red").append("; nothing has changed", style="not bold"))
    table = Listing()
    for block in blocks:
        table.add_row(Text("  blocks", style="red"), printable(f"{block.guardrail_id}: {block.message}"))
    console.print(table)


def event_line(event: pb2.Event) -> Text:
    """Return an event in one line."""
    user = f" of {event.user_id}" if event.HasField("user_id") else ""
    told = ", ".join(filter(None, [event.chat_session_id + user, event.agent, *facts(codec.to_json(event.data))]))
    line = Text(f"{event.sequence}  {moment(event.occurred_at)}  ")
    return line.append(event.type, style="bold").append(f"  {one_line(told)}")


def facts(data: Mapping[str, object]) -> list[str]:
    """Return what a line tells of an event's data."""
    return [str(told(data[name])) for name in SHOWN_DATA if data.get(name)]


def told(value: object) -> object:
    """Return a value of an event's data, a list as its items."""
    return " ".join(map(str, value)) if isinstance(value, list) else value


def one_line(text: str) -> str:
    """Return a text without what could steer the terminal, on one line."""
    return printable(" ".join(text.split()))


def compact(content: Struct) -> str:
    """Return a JSON object on one line; empty where it has no members."""
    return compact_json(codec.to_json(content))


def compact_json(content: Mapping[str, object]) -> str:
    """Return a JSON object on one line; empty where it has no members."""
    return json_text(content, indent=None) if content else ""


def members(content: Struct) -> str:
    """Return what is in a JSON object, by name."""
    return ", ".join(sorted(content)) or "nothing"
