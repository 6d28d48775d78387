"""Lists of rules, page by page."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.guardrails.rules_in_force import RuleListing
from cstp_grpc.platform.storage.pagination import PageRequest, encode_page_token
from tests.core.guardrails.rulebooks import rule, rule_set

NOW = datetime(2026, 2, 4, tzinfo=UTC)


def listing(count: int, text: str = "true") -> RuleListing:
    return RuleListing(rule_set([rule(f"r{place}", text) for place in range(count)]), NOW)


@given(st.integers(1, 30), st.integers(1, 40))
def test_pages_together_are_the_rules_in_their_order(count: int, size: int) -> None:
    rules = listing(count)
    found, token = [], ""
    for _ in range(count + 1):
        page = rules.list_guardrails(PageRequest(size, token))
        assert 0 < len(page.items) <= size
        found += [listed.guardrail.id for listed in page.items]
        if not (token := page.next_token):
            break
    assert found == [f"r{place}" for place in range(count)]


def test_a_page_of_long_rules_is_cut_by_their_size() -> None:
    page = listing(100, f"action.description != '{'x' * 9000}'").list_guardrails(PageRequest(100))
    assert 0 < len(page.items) < 100
    assert page.next_token


@pytest.mark.parametrize("place", [-5, -1, 10, 2**62])
def test_a_made_up_token_never_leaves_the_list(place: int) -> None:
    rules = listing(3)
    page = rules.list_guardrails(PageRequest(1, encode_page_token(("guardrails", rules.version), (place,))))
    assert [listed.guardrail.id for listed in page.items] == (["r0"] if place < 0 else [])


def test_a_token_of_other_rules_or_of_inputs_is_refused() -> None:
    token = listing(3).list_guardrails(PageRequest(1)).next_token
    with pytest.raises(InvalidArgument, match="page_token"):
        listing(4).list_guardrails(PageRequest(1, token))
    with pytest.raises(InvalidArgument, match="page_token"):
        listing(3).list_inputs(PageRequest(1, token))
