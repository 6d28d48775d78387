"""The agents file: which agents can be called, where, and with which tokens."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator


class Section(BaseModel):
    """A part of the file; unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class AgentEntry(Section):
    """An agent that can be called."""

    name: str = Field(min_length=1, max_length=200)
    """The name to call it by."""
    url: str = Field(min_length=1)
    """Where it answers: `grpc://`, `grpcs://`, or a bridge's `http://` or `https://`."""
    token: SecretStr | None = None
    """The bearer token; `${NAME}` takes it from the environment."""
    ca_file: Path | None = None
    """A PEM file of the authorities that certify it, in place of the system's; relative to the folder of this file."""


class Defaults(Section):
    """How every agent is called."""

    timeout_seconds: float = Field(default=30.0, gt=0)
    """How long a call may take, repetitions included."""
    retry_count: int = Field(default=3, ge=0, le=20)
    """How often a call that failed for a passing reason is repeated."""


class AgentsFile(Section):
    """The whole file."""

    agents: tuple[AgentEntry, ...] = ()
    """The agents; each name once."""
    defaults: Defaults = Defaults()
    """How every agent is called."""

    @field_validator("agents")
    @classmethod
    def check_names(cls, agents: tuple[AgentEntry, ...]) -> tuple[AgentEntry, ...]:
        """Refuse a name that is there twice."""
        names = [agent.name for agent in agents]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named more than once: {', '.join(twice)}")
        return agents

    def find(self, name: str) -> AgentEntry | None:
        """Return the agent of a name; None where there is none."""
        return next((agent for agent in self.agents if agent.name == name), None)
