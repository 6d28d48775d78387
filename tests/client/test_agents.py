"""The agents file."""

from __future__ import annotations

from pathlib import Path

import pytest

from cstp_grpc.cli.server_choice import AgentCallDefaults, AgentEntry, AgentsFile
from cstp_grpc.contract.errors import ConfigError
from tests.named_case import named_case

DESIGN = {
    "agents": [
        {"name": "security-policy", "url": "https://security.example.com", "token": "${CSTP_TOKEN_SECURITY}"},
        {"name": "claude-ops", "url": "https://claude-ops.example.com", "token": "${CSTP_TOKEN_CLAUDE}"},
    ],
    "defaults": {"timeout_seconds": 20, "retry_count": 2},
}


def test_the_file_of_the_design_is_read() -> None:
    agents = AgentsFile.parse(DESIGN)
    found = agents.find("claude-ops")
    assert found is not None
    assert found.url == "https://claude-ops.example.com"
    assert (agents.defaults.timeout_seconds, agents.defaults.retry_count) == (20, 2)
    assert agents.find("nobody") is None


def test_defaults_are_those_of_the_design() -> None:
    assert AgentsFile.parse({}).defaults == AgentCallDefaults(timeout_seconds=30, retry_count=3)


def test_tokens_are_never_shown() -> None:
    agents = AgentsFile.parse({"agents": [{"name": "a", "url": "grpc://x:1", "token": "secret-1"}]})
    assert "secret-1" not in repr(agents)


def test_mistakes_are_named() -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"agent": []}, "f: agent: is not a known setting; did you mean `agents`?"),
        ({"agents": {}}, "f: agents: must be a list"),
        ({"agents": None}, "f: agents: must be a list"),
        ({"agents": ["a"]}, "f: agents.0: must be a mapping"),
        ({"agents": [{"name": "a"}]}, "f: agents.0.url: must be given"),
        ({"agents": [{"url": "a"}]}, "f: agents.0.name: must be given"),
        ({"agents": [{"name": "", "url": "u"}]}, "f: agents.0.name: must be a text that is not empty"),
        ({"agents": [{"name": "a" * 201, "url": "u"}]}, "f: agents.0.name: must have at most 200 characters"),
        ({"agents": [{"name": ["a"], "url": "u"}]}, "f: agents.0.name: must be a text that is not empty"),
        ({"agents": [{"name": "a", "url": 1}]}, "f: agents.0.url: must be a text that is not empty"),
        ({"agents": [{"name": "a", "url": "u", "token": 5}]}, "f: agents.0.token: must be a text"),
        (
            {"agents": [{"name": "a", "url": "grpc://x:1", "tokne": "t"}]},
            "f: agents.0.tokne: is not a known setting; did you mean `token`?",
        ),
        ({"agents": [{"name": "a", "url": "u", 1: "t"}]}, "f: agents.0.1: is not a known setting"),
        ({"agents": [{"name": "a", "url": "u"}, {"name": "a", "url": "v"}]}, "f: agents: named more than once: a"),
        ({"defaults": []}, "f: defaults: must be a mapping"),
        ({"defaults": {"retry_count": -1}}, "f: defaults.retry_count: must be a whole number from 0 to 20"),
        ({"defaults": {"retry_count": True}}, "f: defaults.retry_count: must be a whole number from 0 to 20"),
        ({"defaults": {"retry_count": 2.5}}, "f: defaults.retry_count: must be a whole number from 0 to 20"),
        (
            {"defaults": {"timeout_seconds": 0}},
            "f: defaults.timeout_seconds: must be a number of seconds greater than 0",
        ),
        (
            {"defaults": {"timeout_seconds": float("nan")}},
            "f: defaults.timeout_seconds: must be a number of seconds greater than 0",
        ),
    ]
    for content, problem in cases:
        with named_case(content, problem):
            with pytest.raises(ConfigError) as error:
                AgentsFile.parse(content, "f: ")
            assert str(error.value) == problem


def test_every_mistake_is_named_and_no_value_shown() -> None:
    content = {"agents": [{"name": 1, "url": "u", "token": ["secret-1"]}], "defaults": {"retry_count": "secret-2"}}
    with pytest.raises(ConfigError) as error:
        AgentsFile.parse(content)
    assert [line.partition(":")[0] for line in str(error.value).splitlines()] == [
        "agents.0.name",
        "agents.0.token",
        "defaults.retry_count",
    ]
    assert "secret" not in str(error.value)


def test_an_agent_may_have_authorities_of_its_own() -> None:
    agents = AgentsFile.parse({"agents": [{"name": "a", "url": "grpcs://x:1", "token": None, "ca_file": "ca.pem"}]})
    assert agents.agents == (AgentEntry("a", "grpcs://x:1", ca_file=Path("ca.pem")),)
