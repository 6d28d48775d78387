"""The signatures of agent cards: what they cover (A2A 1.0, 8.4, and A2A 0.3), and whether they are by a given key."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import rfc8785
from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3 import types
from a2a.types.a2a_pb2 import AgentCard
from google.protobuf.json_format import Error as FormatError
from google.protobuf.json_format import MessageToDict

from cstp_grpc.card_keys import PublicKey

SIGNATURES: Final = "signatures"
MAX_SIGNATURES: Final = 16
"""How many signatures of a card are looked at."""


def canonical_forms(card: AgentCard) -> list[bytes]:
    """Return what signatures of a card of 1.0 may cover: canonical JSON (RFC 8785) without the signatures.

    The specification leaves out what has its default value; the official SDKs leave out empty objects and lists too.
    """
    content = MessageToDict(card)
    content.pop(SIGNATURES, None)
    return without_repetition(rfc8785.dumps(content), rfc8785.dumps(remove_empty(content)))


def canonical_forms_v0_3(content: Mapping[str, Any]) -> list[bytes]:
    """Return what signatures of a card of 0.3 may cover.

    0.3 does not say; its official SDK leaves out defaults and what is empty, and escapes all that is not ASCII. Raises
    ValueError for what is no card of 0.3.
    """
    card = types.AgentCard.model_validate(content)
    members = card.model_dump(
        mode="json", by_alias=True, exclude={SIGNATURES}, exclude_defaults=True, exclude_none=True
    )
    remaining = remove_empty(members)
    escaped = json.dumps(remaining, separators=(",", ":"), sort_keys=True).encode()
    return without_repetition(rfc8785.dumps(remaining), escaped)


def verified_content(content: Mapping[str, Any], keys: Sequence[PublicKey]) -> tuple[dict[str, Any], PublicKey] | None:
    """Return the members of a card that a signature by one of the keys covers, and that key; None without one.

    What is not returned is not signed, and must not be believed.
    """
    signatures = content.get(SIGNATURES)
    if not isinstance(signatures, list):
        return None
    forms = list(forms_of(content))
    for signature in signatures[:MAX_SIGNATURES]:
        if not isinstance(signature, dict):
            continue
        for key in keys:
            for form in forms:
                if key.verifies(signature.get("protected"), form, signature.get("signature")):
                    return json.loads(form), key
    return None


def forms_of(content: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield what signatures of a card may cover, as far as it is a card of 1.0, of 0.3 or of both."""
    with contextlib.suppress(FormatError, ValueError, TypeError, AttributeError, RecursionError):
        # It changes what it is given.
        yield from canonical_forms(parse_agent_card(copy.deepcopy(dict(content))))
    with contextlib.suppress(ValueError, RecursionError):
        yield from canonical_forms_v0_3(content)


def without_repetition(*forms: bytes) -> list[bytes]:
    """Return forms in their order, each once."""
    return list(dict.fromkeys(forms))


def remove_empty(value: Any) -> Any:
    """Return a JSON value without empty texts, lists and objects; None if nothing is left."""
    if isinstance(value, dict):
        return {name: left for name, item in value.items() if (left := remove_empty(item)) is not None} or None
    if isinstance(value, list):
        return [left for item in value if (left := remove_empty(item)) is not None] or None
    return None if value == "" else value
