"""Signing agent cards; imported where that is configured, because it takes half a second."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from a2a.client.card_resolver import parse_agent_card
from a2a.compat.v0_3 import conversions
from a2a.types import a2a_pb2

from cstp_grpc.contract.card_keys import SigningKey
from cstp_grpc.contract.card_signatures import canonical_card_forms, canonical_card_forms_v0_3


class CardSigner:
    """Signs the forms of a card that clients of A2A 1.0 and 0.3 verify, each on its own."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key
        self.signed_by = f"{key.key_id} {key.thumbprint}"
        """The id of the key."""

    def sign_v1_0(self, card: a2a_pb2.AgentCard) -> None:
        # The forms are built before the first signature is added, and leave signatures out.
        self._add(card, canonical_card_forms(card))

    def sign_for_both(self, card: a2a_pb2.AgentCard) -> None:
        """Add the signatures that clients of 1.0 and of 0.3 verify; the latter convert the card to 0.3 first."""
        old = conversions.to_compat_agent_card(card).model_dump(mode="json", by_alias=True)
        self._add(card, [*canonical_card_forms(card), *canonical_card_forms_v0_3(old)])

    def signatures_v0_3(self, card: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the signatures of a 0.3 card that clients of 0.3 verify."""
        return [self._key.sign(form) for form in canonical_card_forms_v0_3(card)]

    def signatures_v0_3_for_both(self, card: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the signatures of a 0.3 card for clients of 1.0 and 0.3.

        Clients of 1.0 convert the card to 1.0 and verify the result.
        """
        # A copy, because `parse_agent_card` changes its argument.
        new = canonical_card_forms(parse_agent_card(copy.deepcopy(dict(card))))
        return [*self.signatures_v0_3(card), *(self._key.sign(form) for form in new)]

    def _add(self, card: a2a_pb2.AgentCard, forms: Iterable[bytes]) -> None:
        for form in forms:
            card.signatures.add(**self._key.sign(form))
