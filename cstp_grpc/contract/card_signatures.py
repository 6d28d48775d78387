"""Compute the signed forms of agent cards (A2A 1.0, section 8.4, and A2A 0.3), and verify their signatures."""

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

from cstp_grpc.contract.card_keys import PublicKey

SIGNATURES_KEY: Final = "signatures"
MAX_SIGNATURES: Final = 16
"""Maximum number of signatures of a card that are checked. Chosen: each is checked with every key and form, and the
card is another party's."""


def canonical_card_forms(card: AgentCard) -> list[bytes]:
    """Return the byte strings that a signature of a 1.0 card may cover: canonical JSON (RFC 8785), unsigned.

    The specification omits default values; the official SDKs also omit empty objects and lists.
    """
    content = MessageToDict(card)
    # Signatures cannot cover themselves.
    content.pop(SIGNATURES_KEY, None)
    return deduplicate_forms(rfc8785.dumps(content), rfc8785.dumps(remove_empty(content)))


def canonical_card_forms_v0_3(content: Mapping[str, Any]) -> list[bytes]:
    """Return the byte strings that a signature of a 0.3 card may cover.

    0.3 does not define them; its official SDK omits defaults and empty values, and escapes non-ASCII characters.
    Raises ValueError if the content is not a 0.3 card.
    """
    # Through the SDK's model, which drops members that 0.3 does not have: the signers of 0.3 never saw them.
    card = types.AgentCard.model_validate(content)
    members = card.model_dump(
        mode="json", by_alias=True, exclude={SIGNATURES_KEY}, exclude_defaults=True, exclude_none=True
    )
    remaining = remove_empty(members)
    escaped = json.dumps(remaining, separators=(",", ":"), sort_keys=True).encode()
    return deduplicate_forms(rfc8785.dumps(remaining), escaped)


def verify_card(content: Mapping[str, Any], keys: Sequence[PublicKey]) -> tuple[dict[str, Any], PublicKey] | None:
    """Return the signed members of a card and the key that verified them, or None.

    Members that are not returned are not signed and must not be trusted.
    """
    signatures = content.get(SIGNATURES_KEY)
    if not isinstance(signatures, list):
        return None
    # Built once, for all signatures and keys.
    forms = list(signable_forms(content))
    for signature in signatures[:MAX_SIGNATURES]:
        if not isinstance(signature, dict):
            continue
        for key in keys:
            for form in forms:
                if key.verifies(signature.get("protected"), form, signature.get("signature")):
                    # Parsed from the signed bytes, so that nothing which they do not cover can be returned.
                    return json.loads(form), key
    return None


def signable_forms(content: Mapping[str, Any]) -> Iterator[bytes]:
    """Yield the byte strings that signatures of a card may cover, as a card of 1.0 and of 0.3."""
    with contextlib.suppress(FormatError, ValueError, TypeError, AttributeError, RecursionError):
        # A copy, because `parse_agent_card` changes its argument.
        yield from canonical_card_forms(parse_agent_card(copy.deepcopy(dict(content))))
    with contextlib.suppress(ValueError, RecursionError):
        yield from canonical_card_forms_v0_3(content)


def deduplicate_forms(*forms: bytes) -> list[bytes]:
    return list(dict.fromkeys(forms))


def remove_empty(value: Any) -> Any:
    """Remove empty strings, lists and objects from a JSON value; return None if nothing is left."""
    if isinstance(value, dict):
        return {name: left for name, item in value.items() if (left := remove_empty(item)) is not None} or None
    if isinstance(value, list):
        return [left for item in value if (left := remove_empty(item)) is not None] or None
    return None if value == "" else value
