"""Signing agent cards; imported where that is configured, because it takes half a second."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3 import conversions
from a2a.types import a2a_pb2

from cstp_grpc.card_keys import SigningKey
from cstp_grpc.client.card_signatures import canonical_forms, canonical_forms_v0_3


class CardSigner:
    """Signs what clients may take for the content of a card, each form of it on its own."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self.signed_by = f"{key.key_id} {key.thumbprint}"
        """What identifies the key."""

    def sign_new(self, card: a2a_pb2.AgentCard) -> None:
        """Add the signatures that clients of 1.0 verify to their card."""
        self._add(card, canonical_forms(card))

    def sign_for_both(self, card: a2a_pb2.AgentCard) -> None:
        """Add the signatures that clients of either generation verify; those of 0.3 get the card in their members."""
        old = conversions.to_compat_agent_card(card).model_dump(mode="json", by_alias=True)
        self._add(card, [*canonical_forms(card), *canonical_forms_v0_3(old)])

    def signatures_of_old(self, card: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the signatures of a card of 0.3 that clients of 0.3 verify."""
        return [self._key.sign(form) for form in canonical_forms_v0_3(card)]

    def signatures_of_old_for_both(self, card: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the signatures of a card of 0.3 for clients of either generation.

        Those of 1.0 read it as a card of theirs, and verify what they made of it.
        """
        # The SDK changes what it is given.
        new = canonical_forms(parse_agent_card(copy.deepcopy(dict(card))))
        return [*self.signatures_of_old(card), *(self._key.sign(form) for form in new)]

    def _add(self, card: a2a_pb2.AgentCard, forms: Iterable[bytes]) -> None:
        for form in forms:
            card.signatures.add(**self._key.sign(form))
