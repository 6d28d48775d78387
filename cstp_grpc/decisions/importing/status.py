"""Status lines as people write them, in the journal's words.

`docs/importing.md` has the table for readers.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from cstp_grpc.decisions.importing.markdown import Line
from cstp_grpc.decisions.importing.relations import LONGEST_LINE, Relation, RelationKind, read_relations
from cstp_grpc.decisions.importing.text import one_line
from cstp_grpc.vocabulary import DecisionStatus, Outcome


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a decision stands and how it turned out, as far as its status tells.

    Of several in one record the one with the highest `rank` counts: decisions are proposed, taken, dropped, replaced in
    this order, and a list of them may be written in either direction.
    """

    status: DecisionStatus
    outcome: Outcome | None
    rank: int


PROPOSED = Standing(DecisionStatus.PROPOSED, None, 1)
DECIDED = Standing(DecisionStatus.DECIDED, None, 2)
IN_PART = Standing(DecisionStatus.DECIDED, Outcome.PARTIAL, 3)
DROPPED = Standing(DecisionStatus.DECIDED, Outcome.ABANDONED, 4)
OUTDATED = Standing(DecisionStatus.DECIDED, Outcome.PARTIAL, 5)
SUPERSEDED = Standing(DecisionStatus.SUPERSEDED, Outcome.PARTIAL, 6)

WORDS: dict[str, Standing] = {
    word: standing
    for standing, words in (
        (
            PROPOSED,
            "proposed|proposal|draft|pending|open|new|wip|work in progress|under discussion|in discussion|discussion"
            "|discussing|under review|in review|for review|under consideration|investigating|incomplete|on hold"
            "|deferred|postponed|undecided|not yet|not decided|todo|tbd|tbc|rfc|request for comments",
        ),
        (
            DECIDED,
            "accepted|approved|decided|done|adopted|active|agreed|implemented|completed|final|finalised|finalized"
            "|ratified|effective|in effect|in force|in use|current|confirmed|resolved|closed|reviewed",
        ),
        (IN_PART, "partially superseded|partly superseded|superseded in part|partially deprecated|partly deprecated"),
        (
            DROPPED,
            "rejected|declined|denied|withdrawn|abandoned|cancelled|canceled|dropped|retracted|not accepted"
            "|not approved|wontfix|won't do",
        ),
        (
            OUTDATED,
            "deprecated|obsolete|outdated|retired|expired|revoked|reverted|archived|no longer|no longer valid"
            "|no longer used|no longer needed|no longer relevant|no longer applies|no longer applicable",
        ),
        (SUPERSEDED, "superseded|superceded|supersceded|replaced|obsoleted|overridden"),
    )
    for word in words.split("|")
}
"""What the words mean that a status line begins with."""

SKIPPED = (
    "status|currently|now|on|as|of|the|was|is|tentatively|provisionally|unanimously|partially|partly"
    "|jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?"
)
ALTERNATIVES = "|".join(re.escape(word) for word in sorted(WORDS, key=len, reverse=True))
BEGINNING = re.compile(
    rf"(?:[\W\d_]|\b(?:{SKIPPED})\b)*?(?<!\w)(?P<word>{ALTERNATIVES})(?!\w)",
    re.IGNORECASE,
)
ALONE = re.compile(
    r"\s*(?:$|[^\w\s]|\d|(?:by|on|in|at|for|as|since|and|but|with|until|from|after|due)\b)", re.IGNORECASE
)
"""What follows a status word that does not merely begin a sentence, as in "New services are"."""
ANYWHERE = re.compile(rf"(?<!\w)(?:{ALTERNATIVES})(?!\w)")
CHOICE = re.compile(r"\s*[|/]\s*|\s+or\s+")


@dataclass(frozen=True, slots=True)
class StatusReading:
    """What a record's status says.

    `standing` is None where no known word is found; `text` is the line that decided, as written; `chosen` is False
    where it still lists the choices of a template.
    """

    standing: Standing | None
    text: str
    relations: tuple[Relation, ...] = ()
    chosen: bool = True


def read_status(lines: Sequence[Line]) -> StatusReading | None:
    """Return what the lines of a status say; None where there are none."""
    written = [line.head(LONGEST_LINE) for line in lines if line.text.strip()]
    if not written:
        return None
    if any(is_choice(line.text) for line in written):
        return StatusReading(None, one_line(written[0].text), chosen=False)
    best: tuple[Standing | None, str] = None, one_line(written[0].text)
    for number, line in enumerate(written):
        standing = _standing(line, first=number == 0)
        if standing and (best[0] is None or standing.rank > best[0].rank):
            best = standing, one_line(line.text)
    return StatusReading(*best, tuple(read_relations(written)))


def is_choice(text: str) -> bool:
    """Tell whether a status is the list of choices that a template begins with: `proposed | accepted | rejected`."""
    parts = CHOICE.split(text.strip(" {}[]<>().?\"'"))
    return sum(bool(BEGINNING.match(part)) for part in parts) > 2 or len(set(ANYWHERE.findall(text.lower()))) > 3


def _standing(line: Line, *, first: bool) -> Standing | None:
    match = BEGINNING.match(line.text)
    worded = WORDS[match["word"].lower()] if match and (first or ALONE.match(line.text, match.end())) else None
    replacing = [each for each in read_relations([line]) if each.kind is RelationKind.SUPERSEDED_BY]
    if not replacing:
        return worded
    replaced = IN_PART if all(relation.partly for relation in replacing) else SUPERSEDED
    return replaced if worded in (None, SUPERSEDED) else max(worded, replaced, key=lambda each: each.rank)
