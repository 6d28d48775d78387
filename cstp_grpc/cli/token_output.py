"""Output of tokens for people."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.console import Console
from rich.text import Text

from cstp_grpc.cli.answer_fields import entry_text, enum_word, field_texts, format_instant, print_listing
from cstp_grpc.cli.output import to_printable
from cstp_grpc.gen.cstp.v1 import admin_pb2, options_pb2

STATUS_STYLES = {"usable": "green", "revoked": "red", "expired": "dim"}
"""By status."""


def token_status(token: admin_pb2.AgentToken) -> str:
    if token.HasField("revoked_at"):
        return "revoked"
    return "usable" if token.expires_at.ToDatetime(UTC) > datetime.now(UTC) else "expired"


def permission_words(token: admin_pb2.AgentToken) -> str:
    return ", ".join(enum_word(options_pb2.Permission, each) for each in token.permissions)


def print_secret(console: Console, made: admin_pb2.CreateTokenResponse | admin_pb2.RotateTokenResponse) -> None:
    console.print(Text(made.secret), soft_wrap=True)


def describe_new_token(token: admin_pb2.AgentToken) -> str:
    agent = to_printable(token.agent)
    return (
        f"{token.id} is made for {agent}: {permission_words(token)}, until {format_instant(token.expires_at)}. "
        "Its secret is not shown again."
    )


def print_tokens(console: Console, found: Sequence[admin_pb2.AgentToken]) -> None:
    def row(token: admin_pb2.AgentToken) -> tuple[str | Text, ...]:
        status = token_status(token)
        ended = format_instant(token.revoked_at if token.HasField("revoked_at") else token.expires_at)
        details = [
            token.id,
            permission_words(token),
            f"made by {token.created_by}",
            *(field_texts(token, "used at {last_used_at}") or ["never used"]),
            f"{'until' if status == 'usable' else 'ended at'} {ended}",
        ]
        title = f"{token.agent}: {token.note}" if token.HasField("note") else token.agent
        return Text(status, style=STATUS_STYLES[status]), entry_text(title, details)

    print_listing(console, found, row, "No matching tokens.")
