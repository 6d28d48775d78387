"""An environment keeps the expressions that were used last."""

from __future__ import annotations

import pytest

from cstp_grpc.core.guardrails.cel_engine import CelEnvironment
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError


def test_least_recently_used_condition_is_dropped() -> None:
    environment = CelEnvironment([], remembered=2)
    first, second = (environment.parse_condition(f"action.confidence > {limit}") for limit in (0.1, 0.2))
    assert environment.parse_condition("action.confidence > 0.1") is first
    third = environment.parse_condition("action.confidence > 0.3")
    assert environment.parse_condition("action.confidence > 0.1") is first
    assert environment.parse_condition("action.confidence > 0.3") is third
    assert environment.parse_condition("action.confidence > 0.2") is not second


def test_invalid_condition_is_reported_each_time() -> None:
    environment = CelEnvironment([])
    for _ in range(2):
        with pytest.raises(RuleExpressionError, match=r"action\.confidenc"):
            environment.parse_condition("action.confidenc > 1")
