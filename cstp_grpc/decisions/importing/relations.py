"""What a line says of other records: `Superseded by [12. Use X](0012-use-x.md)`, `Amends ADR-0003`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from cstp_grpc.decisions.importing.markdown import Line

LONGEST_LINE = 1000
"""Characters of a line that are searched for relations; what is longer is prose."""


class RelationKind(StrEnum):
    """How a record relates to another."""

    SUPERSEDES = "supersedes"
    SUPERSEDED_BY = "superseded_by"
    DEPENDS_ON = "depends_on"
    RELATES_TO = "relates_to"


@dataclass(frozen=True, slots=True)
class Reference:
    """Another record, by a link's address or by its number."""

    href: str | None = None
    number: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Relation:
    """How a record relates to another one, which may not be named at all; `partly` restricts what `kind` says."""

    kind: RelationKind
    reference: Reference | None = None
    partly: bool = False


PARTLY = r"(?:partially|partly|in\s+part)"
VERB = re.compile(
    rf"(?P<before>\b{PARTLY}\W{{1,3}})?(?:"
    rf"(?P<superseded_by>\b(?:super[sc]eded|replaced|obsoleted|overridden|deprecated|retired)"
    rf"(?P<inside>\W{{1,3}}{PARTLY}\)?)?\s+by\b|\bsuper[sc]eded\b)"
    r"|(?P<supersedes>\b(?:super[sc]edes?|superseding|replaces|obsoletes|overrides|deprecates)\b)"
    r"|(?P<depends_on>\b(?:depends\s+on|requires|builds\s+(?:up)?on|based\s+on)\b)"
    r"|(?P<relates_to>\b(?:amend(?:ed\s+by|s)|clarifie(?:d\s+by|s)|refine(?:d\s+by|s)|extend(?:ed\s+by|s)"
    r"|update(?:d\s+by|s)|required\s+by|relate(?:d|s)(?:\s+to)?|linked\s+to|conflicts\s+with|see(?:\s+also)?)\b)"
    rf")(?P<after>\W{{1,3}}{PARTLY}\b)?",
    re.IGNORECASE,
)
NAMED = re.compile(r"\bADR[-_ #]{0,2}0*(?P<number>\d{1,5})\b", re.IGNORECASE)
BARE = re.compile(r"[:\s]*#?0*(?P<number>\d{1,5})\b(?![-/.:]\d)")


def read_relations(lines: Sequence[Line]) -> list[Relation]:
    """Return what the lines say of other records.

    A verb at the end of a line, as in `Supersedes:`, goes for the lines that follow up to the next one that has a verb.
    """
    relations: list[Relation] = []
    carried: Relation | None = None
    for line in (each.head(LONGEST_LINE) for each in lines):
        verbs = list(VERB.finditer(line.text))
        start = verbs[0].start() if verbs else len(line.text)
        leading = carried if carried and not verbs else Relation(RelationKind.RELATES_TO)
        relations += _named(leading, list(_references(line, 0, start, bare=False)))
        for number, verb in enumerate(verbs):
            end = verbs[number + 1].start() if number + 1 < len(verbs) else len(line.text)
            relation = _relation(verb)
            named = _named(relation, list(_references(line, verb.end(), end, bare=True)))
            relations += named or [relation]
            carried = relation if not named else None
    return relations


def _relation(verb: re.Match[str]) -> Relation:
    kind = next(kind for kind in RelationKind if verb[kind.value])
    return Relation(kind, partly=bool(verb["before"] or verb["inside"] or verb["after"]))


def _named(relation: Relation, references: list[Reference]) -> list[Relation]:
    return [Relation(relation.kind, reference, relation.partly) for reference in references]


def _references(line: Line, start: int, end: int, *, bare: bool) -> Iterator[Reference]:
    """Yield the records named in a part of a line; a number alone counts only right after a verb."""
    links = [link for link in line.links if start <= link.start < end]
    for link in links:
        yield Reference(link.href, text=line.text[link.start : link.end])
    linked = [(link.start, link.end) for link in links]
    for match in NAMED.finditer(line.text, start, end):
        if not any(first <= match.start() < last for first, last in linked):
            yield Reference(number=int(match["number"]), text=match[0])
    if bare and not links and (number := BARE.match(line.text, start, end)):
        yield Reference(number=int(number["number"]), text=number[0].strip(": "))
