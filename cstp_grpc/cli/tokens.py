"""The commands on tokens of agents, which a server makes and takes back while it runs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli.command_decorators import enum_choice, instant_option, with_client
from cstp_grpc.cli.output import to_printable
from cstp_grpc.cli.rpc_commands import calls_rpc, lists_items
from cstp_grpc.cli.short_ids import TOKEN_ID
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.enums import Permission

if TYPE_CHECKING:
    from cstp_grpc.cli import answer_fields
    from cstp_grpc.cli.console import Console
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.gen.cstp.v1 import admin_pb2, options_pb2
else:
    answer_fields = LazyModule("cstp_grpc.cli.answer_fields")
    options_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.options_pb2")

DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

until_option = instant_option("--until", "When it ends.", "expires_at", is_future=True)

MAX_KEEP_SECONDS = 30 * 86_400
"""The longest time by the contract."""


def parse_seconds(text: str) -> int:
    """Parse a duration such as `90s`, `15m`, `1h` or `2d` into seconds. Raises click.BadParameter."""
    number, unit = text[:-1], text[-1:]
    if unit not in DURATION_UNITS or not number.isascii() or not number.isdecimal():
        raise click.BadParameter(f"{text!r} is not a duration like 90s, 15m, 1h or 2d")
    # Not more digits than Python converts, which the bound makes few.
    seconds = int(number) * DURATION_UNITS[unit] if len(number) <= 9 else MAX_KEEP_SECONDS + 1
    if seconds > MAX_KEEP_SECONDS:
        raise click.BadParameter(f"{text!r} is longer than 30d")
    return seconds


@click.group()
def token_group() -> None:
    """Create, list, rotate and revoke tokens. Agents call with them.

    Changes apply to all servers of a journal within a second, without a restart. Needs the permission admin; you cannot
    grant permissions that your own token lacks. Tokens of the configuration are not included.
    """


@token_group.command()
@click.argument("agent", metavar="AGENT")
@click.option(
    "--permission",
    "permissions",
    type=enum_choice(Permission),
    multiple=True,
    help="Permission of the agent; repeatable. [default: query, check]",
)
@until_option
@click.option("--note", metavar="TEXT", help="Purpose of the token.")
@with_client
def create_command(client: CstpClient, out: Output, agent: str, permissions: tuple[str, ...], **fields: Any) -> None:
    """Create a token for an agent. Prints its secret, which is not shown again.

    Only the secret is on standard output, so that it can be put where the agent reads it.

    \b
    Examples:
      cstp token create deployer --permission query --permission check --permission announce
      cstp token create auditor --permission admin --until 2027-03-31 --note "Audit of the first quarter" > token
    """
    permissions = permissions or (Permission.QUERY.value, Permission.CHECK.value)
    # The id is random, so that the client's own repetitions cannot leave a second token behind.
    print_new_token(out, client.create_token(str(uuid.uuid4()), agent, permissions, **fields))


def print_new_token(out: Output, made: admin_pb2.CreateTokenResponse | admin_pb2.RotateTokenResponse) -> None:
    """Print the secret of a token on a line of its own, and what it is on standard error."""
    out.answer(made, lambda console, _: console.print(made.secret, soft_wrap=True))
    if not out.json_wanted:
        out.note(describe_new_token(made.token))


@token_group.command()
@click.option("--of", "agent", metavar="AGENT", help="Of exactly this agent.")
@click.option("--all", "with_ended", is_flag=True, help="Include revoked and expired tokens.")
@lists_items("list_tokens")
def list_command(console: Console, answer: admin_pb2.ListTokensResponse) -> None:
    """List tokens, the newest first. Their secrets are not shown.

    \b
    Examples:
      cstp token list
      cstp token list --of deployer --all --json
    """
    print_tokens(console, answer.tokens)


@token_group.command()
@click.argument("token_id", metavar="ID", type=TOKEN_ID)
@click.option(
    "--keep",
    "keep_seconds",
    type=parse_seconds,
    metavar="TIME",
    help="How long the old one is still accepted: 0s, 90s, 15m, 2d. [default: 1h]",
)
@until_option
@with_client
def rotate_command(client: CstpClient, out: Output, token_id: str, **fields: Any) -> None:
    """Replace a token with a new one. Prints the new secret; the old one expires later.

    \b
    Examples:
      cstp token rotate tok-0f3a9b2c4d5e6f708192
      cstp token rotate tok-0f3a9b2c4d5e6f708192 --keep 10m > token
    """
    print_new_token(out, client.rotate_token(str(uuid.uuid4()), token_id, **fields))


@token_group.command()
@click.argument("id", metavar="ID", type=TOKEN_ID)
@calls_rpc("revoke_token")
def revoke_command(console: Console, answer: admin_pb2.RevokeTokenResponse) -> None:
    """End a token at once, on all servers.

    \b
    Example:
      cstp token revoke tok-0f3a9b2c4d5e6f708192
    """
    token = answer.token
    console.print(f"{token.id} of {to_printable(token.agent)} is revoked.", soft_wrap=True)


STATUS_STYLES = {"usable": "green", "revoked": "red", "expired": "dim"}
"""By status."""


def token_status(token: admin_pb2.AgentToken) -> str:
    if token.HasField("revoked_at"):
        return "revoked"
    return "usable" if token.expires_at.ToDatetime(UTC) > datetime.now(UTC) else "expired"


def permission_words(token: admin_pb2.AgentToken) -> str:
    return ", ".join(answer_fields.enum_word(options_pb2.Permission, each) for each in token.permissions)


def describe_new_token(token: admin_pb2.AgentToken) -> str:
    until = answer_fields.format_instant(token.expires_at)
    made = f"{token.id} is made for {to_printable(token.agent)}: {permission_words(token)}, until {until}."
    return f"{made} Its secret is not shown again."


def print_tokens(console: Console, found: Sequence[admin_pb2.AgentToken]) -> None:
    from cstp_grpc.cli.console import Text

    def row(token: admin_pb2.AgentToken) -> tuple[str | Text, ...]:
        status = token_status(token)
        ended = answer_fields.format_instant(token.revoked_at if token.HasField("revoked_at") else token.expires_at)
        details = [
            token.id,
            permission_words(token),
            f"made by {token.created_by}",
            *(answer_fields.field_texts(token, "used at {last_used_at}") or ["never used"]),
            f"{'until' if status == 'usable' else 'ended at'} {ended}",
        ]
        title = f"{token.agent}: {token.note}" if token.HasField("note") else token.agent
        return Text(status, style=STATUS_STYLES[status]), answer_fields.entry_text(title, details)

    answer_fields.print_listing(console, found, row, "No matching tokens.")
