"""Merging what agents answer: pure functions, for which neither order nor repetition matters.

`join_judgements` and `join_recollections` are commutative, associative and idempotent, and `NOTHING_JUDGED` and
`NOTHING_FOUND` change nothing. No join turns what was denied into what is allowed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Final, TypeVar

from cstp_grpc.client.federation.model import (
    QUORUM,
    UNREACHABLE,
    UNREACHABLE_CODE,
    Finding,
    FindingKey,
    Found,
    Judgement,
    Opinion,
    Poll,
    Recollection,
    Verdict,
)

KeyT = TypeVar("KeyT")
ValueT = TypeVar("ValueT")

NOTHING_JUDGED: Final = Judgement()
NOTHING_FOUND: Final = Recollection()


def join_judgements(a: Judgement, b: Judgement) -> Judgement:
    """Return the verdict of both: what either blocks is blocked, and what one blocks is no warning of the other."""
    return judgement(
        union(a.blocking, b.blocking, worse),
        union(a.warning, b.warning, worse),
        union(a.evaluated, b.evaluated, max),
    )


def join_recollections(a: Recollection, b: Recollection) -> Recollection:
    """Return what both found: of several with the same identifier the one with the greatest weight."""
    return Recollection(union(a.best, b.best, closer), union(a.totals, b.totals, max))


def judgement(
    blocking: Mapping[FindingKey, Finding], warning: Mapping[FindingKey, Finding], evaluated: Mapping[str, int]
) -> Judgement:
    """Return a judgement without the warnings whose guardrails block."""
    if not blocking.keys().isdisjoint(warning):
        warning = {key: finding for key, finding in warning.items() if key not in blocking}
    return Judgement(blocking, warning, evaluated)


def by_key(findings: Iterable[Finding]) -> dict[FindingKey, Finding]:
    """Return findings by agent and guardrail, of several the one with the greatest rank."""
    chosen: dict[FindingKey, Finding] = {}
    for finding in findings:
        there = chosen.get(finding.key)
        chosen[finding.key] = worse(there, finding) if there else finding
    return chosen


def by_id(decisions: Iterable[Found]) -> dict[str, Found]:
    """Return decisions by identifier, of several the one with the greatest weight."""
    chosen: dict[str, Found] = {}
    for found in decisions:
        there = chosen.get(found.id)
        chosen[found.id] = closer(there, found) if there else found
    return chosen


def decide(agent: str, own: Judgement, opinions: Iterable[Opinion], quorum: int | None = None) -> Verdict:
    """Return what comes of the judgement of `agent` and the opinions of its peers.

    Each required peer must allow the action. With a quorum so many of them are enough, and what the others block
    becomes a warning. One that did not judge does not allow it. Advisory peers only warn.
    """
    opinions = tuple(opinions)
    required = joined(voiced(opinion) for opinion in opinions if opinion.required)
    advisory = joined(voiced(opinion) for opinion in opinions if not opinion.required)
    poll = None if quorum is None else poll_of(opinions, quorum)
    if poll is not None:
        missed = not_carried(agent, poll)
        required = softened(required) if poll.carried else joined([required, Judgement({missed.key: missed})])
    return Verdict(joined([own, required, softened(advisory)]), poll)


def joined(judgements: Iterable[Judgement]) -> Judgement:
    """Return the verdict of all."""
    return reduce(join_judgements, judgements, NOTHING_JUDGED)


def voiced(opinion: Opinion) -> Judgement:
    """Return a peer's judgement, or one that blocks because it did not judge; its severity is by the peer's role."""
    if opinion.judgement is not None:
        return opinion.judgement
    role = "required" if opinion.required else "advisory"
    finding = Finding(
        agent=opinion.agent,
        guardrail_id=UNREACHABLE,
        name="A peer did not judge",
        message=f"The {role} peer {opinion.agent} did not judge this. {opinion.why}".rstrip(),
        blocks=opinion.required,
        code=UNREACHABLE_CODE,
    )
    return Judgement({finding.key: finding})


def softened(verdict: Judgement) -> Judgement:
    """Return a judgement that warns of what it blocked; the severity of its findings stays."""
    return Judgement({}, {**verdict.warning, **verdict.blocking}, verdict.evaluated)


def poll_of(opinions: Iterable[Opinion], needed: int) -> Poll:
    """Return the votes of the required peers; one that is there twice allows only what it allows both times."""
    votes: dict[str, bool] = {}
    for opinion in opinions:
        if opinion.required:
            allows = opinion.judgement is not None and opinion.judgement.allowed
            votes[opinion.agent] = allows and votes.get(opinion.agent, True)
    return Poll(needed, votes)


def not_carried(agent: str, poll: Poll) -> Finding:
    """Return what blocks where too few of the required peers allow an action."""
    return Finding(
        agent=agent,
        guardrail_id=QUORUM,
        name="Too few peers allow it",
        message=f"{poll.allowing} of {len(poll.votes)} required peers allow this, and {poll.needed} must",
        blocks=True,
    )


def remembered(own: Recollection, others: Iterable[Recollection]) -> Recollection:
    """Return what all agents found; no other agent's word replaces what one's own memory has of a decision."""
    everyone = reduce(join_recollections, others, own)
    return Recollection({**everyone.best, **own.best}, everyone.totals)


def top(recollection: Recollection, limit: int) -> list[Found]:
    """Return the decisions with the greatest weights, in falling order and by identifier where they are the same."""
    return sorted(recollection.best.values(), key=lambda found: (-found.weight, found.id))[:limit]


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings whose severity is to block first, each group by agent and guardrail."""
    return sorted(findings, key=lambda finding: (not finding.blocks, finding.key))


def suggested(own: Iterable[str], verdict: Judgement, peers: Iterable[Iterable[str]], limit: int) -> list[str]:
    """Return suggestions, none twice: one's own, how to satisfy what blocks, then those of the peers in turns."""
    remedies = (finding.suggestion for finding in ordered(verdict.blocking.values()))
    turns = itertools.chain.from_iterable(itertools.zip_longest(*peers))
    chosen: dict[str, str] = {}
    for text in itertools.chain(own, remedies, turns):
        if text and text.strip():
            chosen.setdefault(" ".join(text.split()).casefold(), text)
    return list(chosen.values())[:limit]


def union(
    a: Mapping[KeyT, ValueT], b: Mapping[KeyT, ValueT], better: Callable[[ValueT, ValueT], ValueT]
) -> Mapping[KeyT, ValueT]:
    """Return what is in either, and where a key is in both, the better."""
    if not a or not b:
        return a or b
    return {**a, **b, **{key: better(a[key], b[key]) for key in a.keys() & b.keys()}}


def worse(a: Finding, b: Finding) -> Finding:
    """Return the finding with the greater rank."""
    return max(a, b, key=lambda finding: finding.rank)


def closer(a: Found, b: Found) -> Found:
    """Return the decision with the greater weight."""
    return min(a, b, key=lambda found: found.rank)
