"""Output of approval requests for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cstp_grpc.cli.answer_fields import Rows, entry_text, enum_word, field_table, format_instant, print_listing, rows_of
from cstp_grpc.cli.console import Console, Text
from cstp_grpc.cli.output import json_text, to_printable
from cstp_grpc.contract import json_codec
from cstp_grpc.gen.cstp.v1 import approvals_pb2, types_pb2

STATUS_STYLES = {"pending": "magenta", "granted": "green", "used": "green", "denied": "red"}
"""By status."""
NO_CONTENT = "(contents are not kept)"


def status_text(approval: approvals_pb2.Approval) -> Text:
    word = enum_word(types_pb2.ApprovalStatus, approval.status)
    return Text(word, style=STATUS_STYLES.get(word, "dim"))


def description_of(approval: approvals_pb2.Approval) -> str:
    return approval.subject.description if approval.HasField("subject") else NO_CONTENT


def description_with_command(approval: approvals_pb2.Approval) -> str:
    """Return the description and the command, which the description need not quote."""
    described, command = description_of(approval), approval.subject.command
    return described if command in described else f"{described}: {command}"


def print_approvals(console: Console, found: Sequence[approvals_pb2.Approval]) -> None:
    def row(approval: approvals_pb2.Approval) -> tuple[str | Text, ...]:
        asking = ", ".join(each.id for each in approval.guardrails)
        details = [approval.id, f"by {agent_text(approval)}", f"asked by {asking}", time_text(approval)]
        return status_text(approval), entry_text(description_with_command(approval), details)

    print_listing(console, found, row, "No matching approval requests.")


def agent_text(approval: approvals_pb2.Approval) -> str:
    return f"{approval.agent} for {approval.on_behalf_of}" if approval.HasField("on_behalf_of") else approval.agent


def time_text(approval: approvals_pb2.Approval) -> str:
    """Return until when a request counts, or since when it is decided."""
    if approval.status in (types_pb2.APPROVAL_STATUS_PENDING, types_pb2.APPROVAL_STATUS_GRANTED):
        return f"until {format_instant(approval.expires_at)}"
    if approval.HasField("used_at"):
        return f"used at {format_instant(approval.used_at)}"
    return f"at {format_instant(approval.decided_at if approval.HasField('decided_at') else approval.expires_at)}"


def approval_line(approval: approvals_pb2.Approval) -> Text:
    parts = [approval.id, agent_text(approval), description_with_command(approval), approval.comment]
    words = " ".join(" ".join(filter(None, parts)).split())
    return Text(f"{enum_word(types_pb2.ApprovalStatus, approval.status)}  {to_printable(words)}")


def print_approval(console: Console, approval: approvals_pb2.Approval) -> None:
    console.print(Text(to_printable(description_of(approval)), style="bold"))
    rows = rows_of(approval, REQUEST_ROWS)
    if approval.HasField("subject"):
        rows += rows_of(approval.subject, SUBJECT_ROWS)
    console.print(field_table([*rows, *guardrail_rows(approval)]))
    if approval.status == types_pb2.APPROVAL_STATUS_PENDING:
        console.print(f"Decide by  cstp approvals grant {to_printable(approval.id)}  or  deny", soft_wrap=True)


def used_text(approval: approvals_pb2.Approval) -> str:
    """Return how often a request was used, empty for never."""
    times = "once" if approval.uses == 1 else f"{approval.uses} times"
    used = f"{times}, last at {format_instant(approval.used_at)} by the check {approval.used_by}"
    return used if approval.uses else ""


def context_text(subject: approvals_pb2.ApprovalSubject) -> str:
    return json_text(json_codec.to_json(subject.context)) if subject.context.fields else ""


def decider_text(approval: approvals_pb2.Approval) -> str:
    decided = f"{approval.decided_by} at {format_instant(approval.decided_at)}"
    return decided if approval.HasField("decided_by") else ""


REQUEST_ROWS: Rows = {
    "status": status_text,
    "agent": agent_text,
    "requested": lambda approval: format_instant(approval.created_at),
    "counts until": lambda approval: format_instant(approval.expires_at),
    "decided by": decider_text,
    "comment": "{comment}",
    "used": used_text,
    "correlation id": "{correlation_id}",
    "rules": "{rule_set_version}",
    "digest": "{digest}",
}
"""The details of a request, by label."""
SUBJECT_ROWS: Rows = {
    "command": "{command}",
    "runs in": "{directory}",
    "reads": "{reads}",
    "writes": "{writes}",
    "category": "{category}",
    "stakes": "{stakes}",
    "confidence": "{confidence}",
    "project": "{project}",
    "paths": "{paths}",
    "further text": "{announced_context}",
    "context": context_text,
}
"""The action as the agent stated it, by label."""


def guardrail_rows(approval: approvals_pb2.Approval) -> Iterator[tuple[str, Text]]:
    for each in approval.guardrails:
        text = Text(to_printable(f"{each.id}: {each.message}" if each.message else each.id))
        if each.HasField("granted_by"):
            text.append(f"\ngranted by {to_printable(each.granted_by)}", style="green")
        elif each.approvers:
            text.append(f"\nwaits for {to_printable(' or '.join(each.approvers))}", style="dim")
        yield "asked by", text


def print_decision(console: Console, approval: approvals_pb2.Approval) -> None:
    """Print the decision on a request, and the next step."""
    status = enum_word(types_pb2.ApprovalStatus, approval.status)
    name, agent = to_printable(approval.id), to_printable(approval.agent)
    if approval.status == types_pb2.APPROVAL_STATUS_PENDING:
        waiting = sorted({name for each in approval.guardrails if not each.granted_by for name in each.approvers})
        console.print(to_printable(f"{name} is granted for your part; it waits for {' or '.join(waiting)}."))
    elif approval.status == types_pb2.APPROVAL_STATUS_GRANTED:
        how = (
            f"any number of times until {format_instant(approval.reusable_until)}"
            if approval.HasField("reusable_until")
            else f"once, until {format_instant(approval.expires_at)}"
        )
        console.print(f"{name} is granted: {agent} may do it {how}.", soft_wrap=True)
    else:
        console.print(f"{name} is {status}.")
