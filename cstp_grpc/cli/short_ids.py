"""Identifiers of decisions, approvals and tokens, given in full or by a beginning that only one of them has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from cstp_grpc.client import CstpClient

FULL_ID: Final = r"[a-z]{3}-[0-9a-f]{20}"
SHORT_ID: Final = r"(?:[a-z]{3}-)?[0-9a-f]{1,19}"
MAX_CANDIDATES: Final = 5
LISTINGS: Final[Mapping[str, tuple[str, str]]] = {
    "dec-": ("list_decisions", "title"),
    "apr-": ("list_approvals", "agent"),
    "tok-": ("list_tokens", "agent"),
}
"""The listings of identifiers by their first characters, and the field that describes an item for people."""


class ShortId(str):
    """The beginning of an identifier, with the first characters that all identifiers of its kind have."""

    __slots__ = ()


class IdType(click.ParamType[str]):
    """The type of a parameter with an identifier; `kind` are the first characters of all of them."""

    name = "id"

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:  # noqa: ARG002
        """Return an identifier, or a ShortId if it is shorter than all."""
        if re.fullmatch(FULL_ID, value) or not re.fullmatch(SHORT_ID, value):
            return value
        return ShortId(value if "-" in value else self._kind + value)


DECISION_ID: Final = IdType("dec-")
APPROVAL_ID: Final = IdType("apr-")
TOKEN_ID: Final = IdType("tok-")


def complete_ids(client: CstpClient, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a command with whole identifiers. Raises click.UsageError and CstpError."""

    def complete(value: Any) -> Any:
        if isinstance(value, ShortId):
            return complete_id(client, value)
        if isinstance(value, tuple):
            return tuple(complete(each) for each in value)
        return value

    return {name: complete(value) for name, value in fields.items()}


def complete_id(client: CstpClient, short: ShortId) -> str:
    """Return the only readable identifier that begins with a text, or the text if none does.

    Raises click.UsageError if there are several, and CstpError.
    """
    listing, label = LISTINGS[short[:4]]
    options = {"with_ended": True} if listing == "list_tokens" else {}
    items = getattr(client, listing)(id_prefix=str(short), page_size=MAX_CANDIDATES + 1, **options)
    found = list(islice(items, MAX_CANDIDATES + 1))
    if len(found) == 1:
        whole: str = found[0].id
        return whole
    if not found:
        return str(short)
    from cstp_grpc.cli.output import to_printable

    lines = [f"  {item.id}  {to_printable(getattr(item, label)[:80])}" for item in found[:MAX_CANDIDATES]]
    more = ["  …"] if len(found) > MAX_CANDIDATES else []
    raise click.UsageError("\n".join([f"Several begin with {short}:", *lines, *more]))
