"""The commands on tokens of agents, which a server makes and takes back while it runs."""

from __future__ import annotations

import uuid
from itertools import islice
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import LIMIT, enum_choice, parse_instant, with_client
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.enums import Permission

if TYPE_CHECKING:
    from datetime import datetime

    from cstp_grpc.cli import token_output
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.gen.cstp.v1 import admin_pb2
else:
    token_output = LazyModule("cstp_grpc.cli.token_output")
    admin_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.admin_pb2")

DURATION_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

until_option = click.option("--until", type=parse_instant, metavar="DATE", help="When it ends.")
id_argument = click.argument("token_id", metavar="ID")


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

    They hold on all servers of a journal within a second, without a restart. Needs the permission admin; nobody grants
    permissions that their own token does not have. Tokens of the configuration are not among them.
    """


@token_group.command(name="create")
@click.argument("agent_name", metavar="AGENT")
@click.option(
    "--permission",
    "permissions",
    type=enum_choice(Permission),
    multiple=True,
    help="What the agent may do; repeatable. [default: query, check]",
)
@until_option
@click.option("--note", metavar="TEXT", help="What it is for.")
@with_client
def create_command(
    client: CstpClient,
    out: Output,
    agent_name: str,
    permissions: tuple[str, ...],
    until: datetime | None,
    note: str | None,
) -> None:
    """Create a token for an agent. Prints its secret, which is not shown again.

    Only the secret is on standard output, so that it can be put where the agent reads it.

    \b
    Examples:
      cstp token create deployer --permission query --permission check --permission announce
      cstp token create auditor --permission admin --until 2027-03-31 --note "Audit of the first quarter" > token
    """
    made = client.create_token(
        # Random, so that the client's own repetitions cannot leave a second token behind.
        str(uuid.uuid4()),
        agent_name,
        permissions or (Permission.QUERY.value, Permission.CHECK.value),
        expires_at=until,
        note=note,
    )
    out.answer(made, lambda console: token_output.print_secret(console, made.secret))
    if not out.json_wanted:
        out.note(token_output.describe_new_token(made.token))


@token_group.command(name="list")
@click.option("--of", "agent_name", metavar="AGENT", help="Of exactly this agent.")
@click.option("--all", "with_ended", is_flag=True, help="Those too that were revoked or have expired.")
@click.option("--limit", type=LIMIT, default=50, show_default=True, help="Maximum number of results.")
@with_client
def list_command(client: CstpClient, out: Output, agent_name: str | None, with_ended: bool, limit: int) -> None:
    """List tokens, the newest first. Their secrets are not shown.

    \b
    Examples:
      cstp token list
      cstp token list --of deployer --all --json
    """
    pages = client.list_tokens(agent=agent_name, with_ended=with_ended, page_size=min(limit, 1000))
    found = list(islice(pages, limit))
    answer = admin_pb2.ListTokensResponse(tokens=found)
    out.answer(answer, lambda console: token_output.print_tokens(console, found))


@token_group.command(name="rotate")
@id_argument
@click.option(
    "--keep",
    "keep_seconds",
    type=parse_seconds,
    metavar="TIME",
    help="How long the old one is still accepted: 0s, 90s, 15m, 2d. [default: 1h]",
)
@until_option
@with_client
def rotate_command(
    client: CstpClient, out: Output, token_id: str, keep_seconds: int | None, until: datetime | None
) -> None:
    """Replace a token with a new one. Prints the new secret; the old one ends a while later.

    \b
    Examples:
      cstp token rotate tok-0f3a9b2c4d5e6f708192
      cstp token rotate tok-0f3a9b2c4d5e6f708192 --keep 10m > token
    """
    made = client.rotate_token(str(uuid.uuid4()), token_id, keep_seconds=keep_seconds, expires_at=until)
    out.answer(made, lambda console: token_output.print_secret(console, made.secret))
    if not out.json_wanted:
        out.note(token_output.describe_new_token(made.token))


@token_group.command(name="revoke")
@id_argument
@with_client
def revoke_command(client: CstpClient, out: Output, token_id: str) -> None:
    """End a token at once, on all servers.

    \b
    Example:
      cstp token revoke tok-0f3a9b2c4d5e6f708192
    """
    revoked = client.revoke_token(token_id)
    answer = admin_pb2.RevokeTokenResponse(token=revoked)
    out.answer(answer, lambda console: token_output.print_revoked(console, revoked))
