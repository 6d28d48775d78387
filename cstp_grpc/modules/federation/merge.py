"""Merge the verdicts and search results of several agents: pure functions, independent of order and repetition.

`merge_verdicts` and `merge_matches` are commutative, associative and idempotent, with `EMPTY_VERDICT` and `NO_MATCHES`
as neutral elements: replies arrive in any order, and one agent may be asked by several ways. No merge turns a denied
action into an allowed one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any, Final, Generic, TypeVar

from cstp_grpc.common.lazy_dataclass import dataclass, field, replace
from cstp_grpc.contract.enums import QUORUM_GUARDRAIL, UNREACHABLE_GUARDRAIL, Severity
from cstp_grpc.core.guardrails.model import Verdict, Violation, is_approval_missing
from cstp_grpc.gen.cstp.v1 import cstp_pb2, intents_pb2

UNREACHABLE_CODE: Final = "FEDERATION_UNREACHABLE"
"""The code of its violation."""

SEVERITY_RANKS: Final = {Severity.WARN: 0, Severity.APPROVE: 1, Severity.BLOCK: 2}
"""How grave each severity is."""

ViolationKey = tuple[str, str]
"""An agent and the identifier of one of its guardrails."""


@dataclass(frozen=True, slots=True)
class MergedVerdict:
    """The verdicts of one or more agents, by the name under which each is known here.

    Each names a guardrail once. A warning whose severity is to block comes from an advisory agent, or was outvoted.
    The evidence of a verdict, such as the version of its rules, is kept until a merge with another of its agent.
    """

    by_agent: Mapping[str, Verdict] = field(default_factory=dict)

    @property
    def allowed(self) -> bool:
        return all(verdict.allowed for verdict in self.by_agent.values())

    @property
    def violations(self) -> Mapping[ViolationKey, Violation]:
        """Violations that block, sorted by agent and guardrail."""
        return sort_violations((agent, each) for agent, verdict in self.by_agent.items() for each in verdict.violations)

    @property
    def warnings(self) -> Mapping[ViolationKey, Violation]:
        """Violations that do not block, with blocking severity first, then sorted by agent and guardrail."""
        return sort_violations((agent, each) for agent, verdict in self.by_agent.items() for each in verdict.warnings)

    @property
    def dryrun(self) -> Mapping[ViolationKey, Violation]:
        """Violations of guardrails in a dry run, sorted like warnings."""
        return sort_violations((agent, each) for agent, verdict in self.by_agent.items() for each in verdict.dryrun)

    @property
    def evaluated(self) -> int:
        return sum(verdict.evaluated for verdict in self.by_agent.values())


@dataclass(frozen=True, slots=True)
class PeerVerdict:
    """A peer's verdict on an action. `verdict` is None if it gave none; then `reason` is a sentence that says why."""

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
        return sum(self.votes.values())

    @property
    def is_reached(self) -> bool:
        return self.allowing >= self.needed


@dataclass(frozen=True, slots=True)
class FederatedVerdict:
    """An agent's own verdict merged with those of its peers; `vote` is None if there was no quorum vote."""

    merged: MergedVerdict
    vote: QuorumVote | None = None

    @property
    def allowed(self) -> bool:
        return self.merged.allowed

    @property
    def approval_required(self) -> bool:
        """Whether the action is not allowed only because a person has not approved it, here or at a peer."""
        is_denied = any(verdict.is_denied for verdict in self.merged.by_agent.values())
        return is_approval_missing(self.merged.violations.values()) and not is_denied


FoundT = TypeVar("FoundT", cstp_pb2.DecisionSummary, cstp_pb2.SimilarDecision)


@dataclass(frozen=True, slots=True)
class WeightedMatch(Generic[FoundT]):
    """A match of an agent, as it stated it; `weight` is its score times the trust in the agent, 0 to 1.

    It stays a message, whose origin names the agent. As a `Match` it would lose details that a `Decision` lacks: the
    nanoseconds of its date, the digits of its distance, and that its status was not stated.
    """

    decision: FoundT
    weight: float

    @property
    def rank(self) -> tuple[float, str, bytes]:
        """The sort key by which the least of several matches of the same decision is kept."""
        # The bytes decide last, so that the choice does not depend on the order of arrival, even between equal weights.
        return -self.weight, self.decision.origin, self.decision.SerializeToString(deterministic=True)


@dataclass(frozen=True, slots=True)
class MergedMatches(Generic[FoundT]):
    """The merged matches of one or more agents: the best by decision id, and the number that each agent found."""

    best: Mapping[str, WeightedMatch[FoundT]] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)


KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

EMPTY_VERDICT: Final = MergedVerdict()
NO_MATCHES: Final[MergedMatches[Any]] = MergedMatches()


def sort_violations(found: Iterable[tuple[str, Violation]]) -> dict[ViolationKey, Violation]:
    """Index violations by agent and guardrail: the gravest severity first, then sorted by these."""
    keyed = [((agent, each.guardrail_id), each) for agent, each in found]
    return dict(sorted(keyed, key=lambda item: (-SEVERITY_RANKS[item[1].severity], item[0])))


def merge_verdicts(a: MergedVerdict, b: MergedVerdict) -> MergedVerdict:
    """Merge two verdicts: a guardrail that either reports as a violation is no longer a warning of the other."""
    return MergedVerdict(merge_by_key(a.by_agent, b.by_agent, merge_verdicts_of_agent))


def merge_verdicts_of_agent(a: Verdict, b: Verdict) -> Verdict:
    """Merge two verdicts of the same agent; the evidence is that of the first in a fixed order."""
    merged = build_verdict(
        (*a.violations, *b.violations),
        (*a.warnings, *b.warnings),
        (*a.dryrun, *b.dryrun),
        evaluated=max(a.evaluated, b.evaluated),
    )
    basis = max(a, b, key=verdict_basis_rank)
    return replace(
        merged,
        rule_set_version=basis.rule_set_version,
        check_id=basis.check_id,
        assumed=basis.assumed,
        ignored=basis.ignored,
        approval=basis.approval,
    )


VerdictBasisRank = tuple[str, str, tuple[str, ...], tuple[tuple[str, str], ...], tuple[str, ...]]


def verdict_basis_rank(verdict: Verdict) -> VerdictBasisRank:
    """Return the sort key by which the basis of one of several verdicts of an agent is kept."""
    ignored = tuple((each.name, each.closest or "") for each in verdict.ignored)
    found = verdict.approval
    # As texts, since an absent comment cannot be compared with one.
    approval = (found.id, found.status.value, found.expires_at.isoformat(), repr(found)) if found else ()
    return verdict.rule_set_version, verdict.check_id, verdict.assumed, ignored, approval


def build_verdict(
    violations: Iterable[Violation],
    warnings: Iterable[Violation],
    dryrun: Iterable[Violation] = (),
    *,
    evaluated: int = 0,
) -> Verdict:
    """Build an agent's verdict with each guardrail once, sorted by id, and without warnings of those that block."""
    blocking, warning, tried = map(index_violations, (violations, warnings, dryrun))
    return Verdict(
        tuple(blocking[key] for key in sorted(blocking)),
        # A guardrail that blocks by one answer and warns by another blocks: repeated answers never weaken a verdict.
        tuple(warning[key] for key in sorted(warning.keys() - blocking.keys())),
        evaluated,
        rule_set_version="",
        allowed=not blocking,
        dryrun=tuple(tried[key] for key in sorted(tried)),
    )


def index_violations(violations: Iterable[Violation]) -> dict[str, Violation]:
    """Index the violations of an agent by guardrail, keeping the highest-ranked one of each."""
    highest: dict[str, Violation] = {}
    for each in violations:
        other = highest.get(each.guardrail_id)
        highest[each.guardrail_id] = max(other, each, key=violation_rank) if other else each
    return highest


ViolationRank = tuple[
    int, str, str, tuple[str, ...], tuple[str, ...], tuple[tuple[str, str, str, tuple[str, ...]], ...]
]


def violation_rank(violation: Violation) -> ViolationRank:
    """Return the sort key by which the greatest of several violations of the same guardrail is kept."""
    # None cannot be compared with a text; as an empty tuple it ranks below all of them.
    suggestion = () if violation.suggestion is None else (violation.suggestion,)
    code = () if violation.code is None else (violation.code,)
    missing_inputs = tuple(
        (each.name, each.type, each.description or "", each.values) for each in violation.missing_inputs
    )
    return (SEVERITY_RANKS[violation.severity], violation.message, violation.name, suggestion, code, missing_inputs)


def merge_matches(a: MergedMatches[FoundT], b: MergedMatches[FoundT]) -> MergedMatches[FoundT]:
    """Merge two search results: of matches of the same decision, keep the one with the greatest weight."""
    return MergedMatches(merge_by_key(a.best, b.best, better_match), merge_by_key(a.totals, b.totals, max))


def index_matches(matches: Iterable[WeightedMatch[FoundT]]) -> dict[str, WeightedMatch[FoundT]]:
    """Index matches by decision id, keeping the one with the greatest weight."""
    best: dict[str, WeightedMatch[FoundT]] = {}
    for match in matches:
        other = best.get(match.decision.id)
        best[match.decision.id] = better_match(other, match) if other else match
    return best


def decide_verdict(
    agent: str, own: MergedVerdict, peers: Iterable[PeerVerdict], quorum: int | None = None
) -> FederatedVerdict:
    """Return the verdict of `agent` combined with those of its peers.

    Each required peer must allow the action. With a quorum, that many are enough, and violations of the others become
    warnings. A peer without a verdict does not allow the action. Advisory peers only warn.
    """
    peers = tuple(peers)
    required = merge_all_verdicts(verdict_of_peer(peer) for peer in peers if peer.required)
    advisory = merge_all_verdicts(verdict_of_peer(peer) for peer in peers if not peer.required)
    vote = None if quorum is None else count_votes(peers, quorum)
    if vote is not None:
        required = (
            as_warnings(required)
            if vote.is_reached
            else merge_verdicts(required, blocking_verdict(agent, quorum_violation(vote)))
        )
    return FederatedVerdict(merge_all_verdicts([own, required, as_warnings(advisory)]), vote)


def merge_all_verdicts(verdicts: Iterable[MergedVerdict]) -> MergedVerdict:
    return reduce(merge_verdicts, verdicts, EMPTY_VERDICT)


def blocking_verdict(agent: str, violation: Violation) -> MergedVerdict:
    return MergedVerdict({agent: build_verdict([violation], [])})


def verdict_of_peer(peer: PeerVerdict) -> MergedVerdict:
    """Return a peer's verdict, or a violation for its absence, whose severity depends on the peer's role."""
    if peer.verdict is not None:
        return peer.verdict
    role = "required" if peer.required else "advisory"
    violation = Violation(
        UNREACHABLE_GUARDRAIL,
        "A peer gave no verdict",
        f"The {role} peer {peer.agent} gave no verdict. {peer.reason}".rstrip(),
        Severity.BLOCK if peer.required else Severity.WARN,
        code=UNREACHABLE_CODE,
    )
    return blocking_verdict(peer.agent, violation)


def as_warnings(verdict: MergedVerdict) -> MergedVerdict:
    """Turn the violations of a verdict into warnings, which keep their severity."""
    return MergedVerdict(
        {
            agent: build_verdict([], (*each.warnings, *each.violations), each.dryrun, evaluated=each.evaluated)
            for agent, each in verdict.by_agent.items()
        }
    )


def count_votes(peers: Iterable[PeerVerdict], needed: int) -> QuorumVote:
    """Count the votes of the required peers; one listed twice allows only if it allows both times."""
    votes: dict[str, bool] = {}
    for peer in peers:
        if peer.required:
            allows = peer.verdict is not None and peer.verdict.allowed
            votes[peer.agent] = allows and votes.get(peer.agent, True)
    return QuorumVote(needed, votes)


def quorum_violation(vote: QuorumVote) -> Violation:
    message = f"{vote.allowing} of {len(vote.votes)} required peers allow this, and {vote.needed} must"
    return Violation(QUORUM_GUARDRAIL, "Too few peers allow it", message, Severity.BLOCK)


def merge_search_results(own: MergedMatches[FoundT], others: Iterable[MergedMatches[FoundT]]) -> MergedMatches[FoundT]:
    """Merge the matches of all agents; the own journal's version of a decision takes precedence."""
    everyone = reduce(merge_matches, others, own)
    # A peer could otherwise replace a decision of this journal, by claiming a higher score.
    return MergedMatches({**everyone.best, **own.best}, everyone.totals)


def top_matches(matches: MergedMatches[FoundT], limit: int) -> list[FoundT]:
    """Return the decisions with the greatest weights, in falling order, then by id."""
    ordered = sorted(matches.best.values(), key=lambda match: (-match.weight, match.decision.id))
    return [match.decision for match in ordered[:limit]]


def merge_suggestions(
    own: Iterable[cstp_pb2.Suggestion],
    verdict: MergedVerdict,
    peers: Iterable[Iterable[cstp_pb2.Suggestion]],
    limit: int,
) -> list[cstp_pb2.Suggestion]:
    """Merge suggestions without duplicates: own ones, remedies for violations, then those of the peers in turn."""
    remedies = [
        cstp_pb2.Suggestion(
            text=violation.suggestion,
            kind=cstp_pb2.SUGGESTION_KIND_GUARDRAIL,
            guardrail_id=violation.guardrail_id,
            origin=agent,
        )
        for (agent, _), violation in verdict.violations.items()
        if violation.suggestion
    ]
    # Round robin: a peer with many suggestions does not push out those of the others.
    turns = itertools.chain.from_iterable(itertools.zip_longest(*peers))
    chosen: dict[str, cstp_pb2.Suggestion] = {}
    for suggestion in itertools.chain(own, remedies, turns):
        if suggestion is not None and suggestion.text.strip():
            # Equal but for case and spacing counts as the same; the first wording is shown.
            chosen.setdefault(" ".join(suggestion.text.split()).casefold(), suggestion)
    return list(chosen.values())[:limit]


@dataclass(frozen=True, slots=True)
class WeightedIntent:
    """A related intent that an agent reported, unchanged; its origin names the agent.

    `weight` is its score times the trust in the agent, 0 to 1.
    """

    intent: intents_pb2.RelatedIntent
    weight: float

    @property
    def key(self) -> tuple[str, str, int]:
        """The identity of an intent that several agents report."""
        return self.intent.agent, self.intent.correlation_id, self.intent.received_at.ToNanoseconds()

    @property
    def rank(self) -> tuple[bool, float, str, bytes]:
        """The sort key: open ones first, then by falling weight."""
        # The bytes decide last, so that the order does not depend on that of arrival.
        stated = self.intent.SerializeToString(deterministic=True)
        return self.intent.HasField("closing"), -self.weight, self.intent.origin, stated


def merge_related_intents(
    own: Iterable[WeightedIntent], others: Iterable[WeightedIntent], limit: int
) -> list[intents_pb2.RelatedIntent]:
    """Merge related intents, each once: this agent's own copy takes precedence."""
    best: dict[tuple[str, str, int], WeightedIntent] = {}
    for each in itertools.chain(own, sorted(others, key=lambda item: item.rank)):
        best.setdefault(each.key, each)
    return [each.intent for each in sorted(best.values(), key=lambda item: item.rank)][:limit]


def merge_by_key(
    a: Mapping[KeyT, ValueT], b: Mapping[KeyT, ValueT], better: Callable[[ValueT, ValueT], ValueT]
) -> Mapping[KeyT, ValueT]:
    """Merge two mappings; for common keys, keep the better value."""
    if not a or not b:
        return a or b
    return {**a, **b, **{key: better(a[key], b[key]) for key in a.keys() & b.keys()}}


def better_match(a: WeightedMatch[FoundT], b: WeightedMatch[FoundT]) -> WeightedMatch[FoundT]:
    return min(a, b, key=lambda match: match.rank)
