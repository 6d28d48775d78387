"""The agents file."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from cstp_grpc.client.agents import AgentsFile

DESIGN = {
    "agents": [
        {"name": "security-policy", "url": "https://security.example.com", "token": "${CSTP_TOKEN_SECURITY}"},
        {"name": "claude-ops", "url": "https://claude-ops.example.com", "token": "${CSTP_TOKEN_CLAUDE}"},
    ],
    "defaults": {"timeout_seconds": 20, "retry_count": 2},
}


def test_the_file_of_the_design_is_read() -> None:
    agents = AgentsFile.model_validate(DESIGN)
    found = agents.find("claude-ops")
    assert found is not None
    assert found.url == "https://claude-ops.example.com"
    assert (agents.defaults.timeout_seconds, agents.defaults.retry_count) == (20, 2)
    assert agents.find("nobody") is None


def test_defaults_are_those_of_the_design() -> None:
    assert AgentsFile().defaults.model_dump() == {"timeout_seconds": 30, "retry_count": 3}


def test_tokens_are_never_shown() -> None:
    agents = AgentsFile.model_validate({"agents": [{"name": "a", "url": "grpc://x:1", "token": "secret-1"}]})
    assert "secret-1" not in repr(agents)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"agent": []}, "agent"),
        ({"agents": [{"name": "a"}]}, "url"),
        ({"agents": [{"name": "a", "url": "grpc://x:1", "tokne": "t"}]}, "tokne"),
        ({"agents": [{"name": "a", "url": "u"}, {"name": "a", "url": "v"}]}, "named more than once: a"),
        ({"defaults": {"retry_count": -1}}, "retry_count"),
    ],
)
def test_mistakes_are_named(content: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        AgentsFile.model_validate(content)
