"""Merge the verdicts and search results of several agents: pure functions, independent of order and repetition.

`merge_verdicts` and `merge_matches` are commutative, associative and idempotent, with `EMPTY_VERDICT` and
`NO_MATCHES` as
neutral elements. No merge turns a denied action into an allowed one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Final, TypeVar

UNREACHABLE_GUARDRAIL: Final = "federation-unreachable"
"""The guardrail id of a peer that gave no verdict."""
UNREACHABLE_CODE: Final = "FEDERATION_UNREACHABLE"
"""The code of its violation."""
QUORUM_GUARDRAIL: Final = "federation-quorum"
"""The guardrail id of a missed quorum."""

ViolationKey = tuple[str, str]
"""An agent and the identifier of one of its guardrails."""


@dataclass(frozen=True, slots=True)
class PeerViolation:
    """A violation or warning of one agent.

    `blocks` is its severity: a warning that blocks comes from an advisory agent, or was outvoted.
    """

    agent: str
    guardrail_id: str
    name: str
    message: str
    blocks: bool
    suggestion: str | None = None
    code: str | None = None
    missing_inputs: tuple[tuple[str, str, str], ...] = ()
    """The missing inputs: name, type and description of each."""

    @property
    def key(self) -> ViolationKey:
        """The identity of a violation: agent and guardrail."""
        return self.agent, self.guardrail_id

    @property
    def rank(
        self,
    ) -> tuple[bool, str, str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, str, str], ...]]:
        """The sort key by which the greatest of several violations with the same key is kept."""
        suggestion = () if self.suggestion is None else (self.suggestion,)
        code = () if self.code is None else (self.code,)
        return self.blocks, self.message, self.name, suggestion, code, self.missing_inputs


@dataclass(frozen=True, slots=True)
class MergedVerdict:
    """The merged verdict of one or more agents.

    No key is in both `blocking` and `warning`; `evaluated` counts the guardrails that each agent evaluated.
    """

    blocking: Mapping[ViolationKey, PeerViolation] = field(default_factory=dict)
    warning: Mapping[ViolationKey, PeerViolation] = field(default_factory=dict)
    evaluated: Mapping[str, int] = field(default_factory=dict)

    @property
    def allowed(self) -> bool:
        """Whether nothing blocks."""
        return not self.blocking


@dataclass(frozen=True, slots=True)
class PeerVerdict:
    """A peer's verdict on an action.

    `verdict` is None if it gave none; then `reason` is a sentence that says why.
    """

    agent: str
    required: bool
    verdict: MergedVerdict | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class QuorumVote:
    """The votes of the required peers by name, and how many of them must allow the action."""

    needed: int
    votes: Mapping[str, bool]

    @property
    def allowing(self) -> int:
        """How many allow the action."""
        return sum(self.votes.values())

    @property
    def is_reached(self) -> bool:
        """Whether the quorum is reached."""
        return self.allowing >= self.needed


@dataclass(frozen=True, slots=True)
class FederatedVerdict:
    """An agent's own verdict merged with those of its peers; `vote` is None if there was no quorum vote."""

    merged: MergedVerdict
    vote: QuorumVote | None = None

    @property
    def allowed(self) -> bool:
        """Whether nothing blocks."""
        return self.merged.allowed


@dataclass(frozen=True, slots=True)
class PeerMatch:
    """A decision that an agent found; `weight` is its score times the trust in the agent, 0 to 1.

    `content` is the serialized message about the decision, opaque here.
    """

    id: str
    agent: str
    weight: float
    content: bytes

    @property
    def rank(self) -> tuple[float, str, bytes]:
        """The sort key by which the least of several matches with the same id is kept."""
        return -self.weight, self.agent, self.content


@dataclass(frozen=True, slots=True)
class MergedMatches:
    """The merged matches of one or more agents: the best by id, and the number that each agent found."""

    best: Mapping[str, PeerMatch] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)


KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

EMPTY_VERDICT: Final = MergedVerdict()
NO_MATCHES: Final = MergedMatches()


def merge_verdicts(a: MergedVerdict, b: MergedVerdict) -> MergedVerdict:
    """Merge two verdicts: what either blocks is blocked, and is no longer a warning of the other."""
    return build_verdict(
        merge_by_key(a.blocking, b.blocking, higher_ranked_violation),
        merge_by_key(a.warning, b.warning, higher_ranked_violation),
        merge_by_key(a.evaluated, b.evaluated, max),
    )


def merge_matches(a: MergedMatches, b: MergedMatches) -> MergedMatches:
    """Merge two search results: of matches with the same id, keep the one with the greatest weight."""
    return MergedMatches(merge_by_key(a.best, b.best, better_match), merge_by_key(a.totals, b.totals, max))


def build_verdict(
    blocking: Mapping[ViolationKey, PeerViolation],
    warning: Mapping[ViolationKey, PeerViolation],
    evaluated: Mapping[str, int],
) -> MergedVerdict:
    """Build a verdict without the warnings of guardrails that block."""
    if not blocking.keys().isdisjoint(warning):
        warning = {key: finding for key, finding in warning.items() if key not in blocking}
    return MergedVerdict(blocking, warning, evaluated)


def index_violations(findings: Iterable[PeerViolation]) -> dict[ViolationKey, PeerViolation]:
    """Index violations by agent and guardrail, keeping the highest-ranked one of each."""
    chosen: dict[ViolationKey, PeerViolation] = {}
    for finding in findings:
        there = chosen.get(finding.key)
        chosen[finding.key] = higher_ranked_violation(there, finding) if there else finding
    return chosen


def index_matches(decisions: Iterable[PeerMatch]) -> dict[str, PeerMatch]:
    """Index matches by decision id, keeping the one with the greatest weight."""
    chosen: dict[str, PeerMatch] = {}
    for found in decisions:
        there = chosen.get(found.id)
        chosen[found.id] = better_match(there, found) if there else found
    return chosen


def decide_verdict(
    agent: str, own: MergedVerdict, opinions: Iterable[PeerVerdict], quorum: int | None = None
) -> FederatedVerdict:
    """Return the verdict of `agent` combined with those of its peers.

    Each required peer must allow the action. With a quorum, that many are enough, and what the others block becomes a
    warning. A peer without a verdict does not allow the action. Advisory peers only warn.
    """
    opinions = tuple(opinions)
    required = merge_all_verdicts(verdict_of_peer(opinion) for opinion in opinions if opinion.required)
    advisory = merge_all_verdicts(verdict_of_peer(opinion) for opinion in opinions if not opinion.required)
    poll = None if quorum is None else count_votes(opinions, quorum)
    if poll is not None:
        missed = quorum_violation(agent, poll)
        required = (
            as_warnings(required)
            if poll.is_reached
            else merge_all_verdicts([required, MergedVerdict({missed.key: missed})])
        )
    return FederatedVerdict(merge_all_verdicts([own, required, as_warnings(advisory)]), poll)


def merge_all_verdicts(judgements: Iterable[MergedVerdict]) -> MergedVerdict:
    """Merge any number of verdicts."""
    return reduce(merge_verdicts, judgements, EMPTY_VERDICT)


def verdict_of_peer(opinion: PeerVerdict) -> MergedVerdict:
    """Return a peer's verdict, or a violation for its absence, whose severity depends on the peer's role."""
    if opinion.verdict is not None:
        return opinion.verdict
    role = "required" if opinion.required else "advisory"
    finding = PeerViolation(
        agent=opinion.agent,
        guardrail_id=UNREACHABLE_GUARDRAIL,
        name="A peer did not judge",
        message=f"The {role} peer {opinion.agent} did not judge this. {opinion.reason}".rstrip(),
        blocks=opinion.required,
        code=UNREACHABLE_CODE,
    )
    return MergedVerdict({finding.key: finding})


def as_warnings(verdict: MergedVerdict) -> MergedVerdict:
    """Turn the violations of a verdict into warnings, which keep their severity."""
    return MergedVerdict({}, {**verdict.warning, **verdict.blocking}, verdict.evaluated)


def count_votes(opinions: Iterable[PeerVerdict], needed: int) -> QuorumVote:
    """Count the votes of the required peers; one listed twice allows only if it allows both times."""
    votes: dict[str, bool] = {}
    for opinion in opinions:
        if opinion.required:
            allows = opinion.verdict is not None and opinion.verdict.allowed
            votes[opinion.agent] = allows and votes.get(opinion.agent, True)
    return QuorumVote(needed, votes)


def quorum_violation(agent: str, poll: QuorumVote) -> PeerViolation:
    """Return the violation for a missed quorum."""
    return PeerViolation(
        agent=agent,
        guardrail_id=QUORUM_GUARDRAIL,
        name="Too few peers allow it",
        message=f"{poll.allowing} of {len(poll.votes)} required peers allow this, and {poll.needed} must",
        blocks=True,
    )


def merge_search_results(own: MergedMatches, others: Iterable[MergedMatches]) -> MergedMatches:
    """Merge the matches of all agents; the own journal's version of a decision takes precedence."""
    everyone = reduce(merge_matches, others, own)
    return MergedMatches({**everyone.best, **own.best}, everyone.totals)


def top_matches(recollection: MergedMatches, limit: int) -> list[PeerMatch]:
    """Return the matches with the greatest weights, in falling order, then by id."""
    return sorted(recollection.best.values(), key=lambda found: (-found.weight, found.id))[:limit]


def sort_violations(findings: Iterable[PeerViolation]) -> list[PeerViolation]:
    """Sort violations: blocking severity first, then by agent and guardrail."""
    return sorted(findings, key=lambda finding: (not finding.blocks, finding.key))


def merge_suggestions(
    own: Iterable[str], verdict: MergedVerdict, peers: Iterable[Iterable[str]], limit: int
) -> list[str]:
    """Merge suggestions without duplicates: own ones, remedies for violations, then those of the peers in turn."""
    remedies = (finding.suggestion for finding in sort_violations(verdict.blocking.values()))
    turns = itertools.chain.from_iterable(itertools.zip_longest(*peers))
    chosen: dict[str, str] = {}
    for text in itertools.chain(own, remedies, turns):
        if text and text.strip():
            chosen.setdefault(" ".join(text.split()).casefold(), text)
    return list(chosen.values())[:limit]


def merge_by_key(
    a: Mapping[KeyT, ValueT], b: Mapping[KeyT, ValueT], better: Callable[[ValueT, ValueT], ValueT]
) -> Mapping[KeyT, ValueT]:
    """Merge two mappings; for common keys, keep the better value."""
    if not a or not b:
        return a or b
    return {**a, **b, **{key: better(a[key], b[key]) for key in a.keys() & b.keys()}}


def higher_ranked_violation(a: PeerViolation, b: PeerViolation) -> PeerViolation:
    """Return the violation with the higher rank."""
    return max(a, b, key=lambda finding: finding.rank)


def better_match(a: PeerMatch, b: PeerMatch) -> PeerMatch:
    """Return the match with the greater weight."""
    return min(a, b, key=lambda found: found.rank)
