"""What agents answer each other, as plain values that can be merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

UNREACHABLE: Final = "federation-unreachable"
"""The guardrail of a peer that did not judge."""
UNREACHABLE_CODE: Final = "FEDERATION_UNREACHABLE"
"""The code of its violation."""
QUORUM: Final = "federation-quorum"
"""The guardrail of a vote in which too few allowed the action."""

FindingKey = tuple[str, str]
"""An agent and the identifier of one of its guardrails."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation or a warning of one agent.

    `blocks` tells its severity: a warning that blocks is one of an advisory agent, or one that was outvoted.
    """

    agent: str
    guardrail_id: str
    name: str
    message: str
    blocks: bool
    suggestion: str | None = None
    code: str | None = None
    missing_inputs: tuple[tuple[str, str, str], ...] = ()
    """The inputs that were not given: name, type and description of each."""

    @property
    def key(self) -> FindingKey:
        """What there is one finding of."""
        return self.agent, self.guardrail_id

    @property
    def rank(
        self,
    ) -> tuple[bool, str, str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, str, str], ...]]:
        """By which the greatest of several findings with the same key is chosen."""
        suggestion = () if self.suggestion is None else (self.suggestion,)
        code = () if self.code is None else (self.code,)
        return self.blocks, self.message, self.name, suggestion, code, self.missing_inputs


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of one agent or of several, merged.

    No key is in both `blocking` and `warning`; `evaluated` counts the guardrails of each agent that judged.
    """

    blocking: Mapping[FindingKey, Finding] = field(default_factory=dict)
    warning: Mapping[FindingKey, Finding] = field(default_factory=dict)
    evaluated: Mapping[str, int] = field(default_factory=dict)

    @property
    def allowed(self) -> bool:
        """Whether nothing blocks."""
        return not self.blocking


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a peer that was asked says of an action.

    `judgement` is None where it did not judge; then `why` is a sentence that says so.
    """

    agent: str
    required: bool
    judgement: Judgement | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Poll:
    """The votes of the required peers by their names, and how many of them must allow the action."""

    needed: int
    votes: Mapping[str, bool]

    @property
    def allowing(self) -> int:
        """How many allow it."""
        return sum(self.votes.values())

    @property
    def carried(self) -> bool:
        """Whether enough allow it."""
        return self.allowing >= self.needed


@dataclass(frozen=True, slots=True)
class Verdict:
    """What comes of an agent's own judgement and the opinions of its peers; `poll` is None where none was held."""

    judgement: Judgement
    poll: Poll | None = None

    @property
    def allowed(self) -> bool:
        """Whether nothing blocks."""
        return self.judgement.allowed


@dataclass(frozen=True, slots=True)
class Found:
    """A decision that an agent found; `weight` is its score times the trust in the agent, 0 to 1.

    `content` is opaque: what is told of the decision, as bytes.
    """

    id: str
    agent: str
    weight: float
    content: bytes

    @property
    def rank(self) -> tuple[float, str, bytes]:
        """By which the least of several with the same identifier is chosen."""
        return -self.weight, self.agent, self.content


@dataclass(frozen=True, slots=True)
class Recollection:
    """The decisions that one agent found or several, merged: the best by identifier, and how many each agent found."""

    best: Mapping[str, Found] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
