"""The sets of queries: records, what is asked, and which records are right."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

QUESTIONS = Path(__file__).with_name("questions.yaml")

IRRELEVANT = Path(__file__).with_name("irrelevant.yaml")

SHORT_WORDS = 60
"""Words of the short form of an architecture record: about as much as an agent writes by hand."""

SPELLINGS = ("PEP {0}", "pep-{0:04}", "PEP{0}", "what became of PEP {0}?", "does this contradict pep-{0}")
IDENTIFIED = 75
"""Records that are asked for by identifier, in each spelling."""


@dataclass(frozen=True, slots=True)
class Record:
    """A decision of a corpus, known by its source."""

    source: str
    title: str
    context: str


@dataclass(frozen=True, slots=True)
class Query:
    """A text with the sources that it should find; the one that it was made of does not count."""

    text: str
    right: frozenset[str]
    asking: str | None = None


@dataclass(frozen=True, slots=True)
class QuerySet:
    """Queries on the records of one corpus."""

    name: str
    corpus: str
    queries: Sequence[Query]


def read_corpora(folder: Path) -> Mapping[str, Sequence[Record]]:
    """Return the records of each corpus by its name."""
    proposals = read_proposals(folder)
    records = read_architecture_records(folder)
    return {
        "proposals": [
            Record(f"pep-{each['number']:04}", f"PEP {each['number']} – {each['title']}", each["abstract"])
            for each in proposals
        ],
        "proposals by source": [
            Record(f"pep-{each['number']:04}", each["title"], each["abstract"]) for each in proposals
        ],
        "records": [Record(each.source, each.title, " ".join(each.context.split()[:SHORT_WORDS])) for each in records],
        "long records": records,
    }


def read_query_sets(folder: Path) -> Sequence[QuerySet]:
    """Return all sets of queries."""
    proposals = read_proposals(folder)
    identified = proposals[:: len(proposals) // IDENTIFIED][:IDENTIFIED]
    identifiers = [
        Query(spelling.format(each["number"]), frozenset({f"pep-{each['number']:04}"}))
        for each in identified
        for spelling in SPELLINGS
    ]
    questions = [
        Query(each["ask"], frozenset(each["right"])) for each in yaml.safe_load(QUESTIONS.read_text(encoding="utf-8"))
    ]
    return [
        QuerySet("links", "proposals", link_queries(proposals)),
        QuerySet("links, numbers in sources", "proposals by source", link_queries(proposals)),
        QuerySet("identifiers", "proposals", identifiers),
        QuerySet("identifiers in sources", "proposals by source", identifiers),
        QuerySet("questions", "records", questions),
        QuerySet("questions, long", "long records", questions),
        QuerySet("questions held out", "records", questions[1::2]),
        QuerySet("questions held out, long", "long records", questions[1::2]),
    ]


def read_irrelevant_intents() -> Sequence[str]:
    """Return intents about which no corpus knows anything."""
    intents: Sequence[str] = yaml.safe_load(IRRELEVANT.read_text(encoding="utf-8"))
    return intents


def read_proposals(folder: Path) -> Sequence[Mapping[str, Any]]:
    """Return the proposals as they are stored, one JSON object a line."""
    lines = (folder / "peps.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def link_queries(proposals: Sequence[Mapping[str, Any]]) -> Sequence[Query]:
    """Return a query of title and abstract for each linked proposal; those that it is linked with are right."""
    known = {each["number"] for each in proposals}
    linked: dict[object, set[object]] = {number: set() for number in known}
    for each in proposals:
        for number in (number for numbers in each["links"].values() for number in numbers):
            if number in known and number != each["number"]:
                linked[each["number"]].add(number)
                linked[number].add(each["number"])
    return [
        Query(
            f"{each['title']}\n{each['abstract']}"[:8000],
            frozenset(f"pep-{number:04}" for number in linked[each["number"]]),
            f"pep-{each['number']:04}",
        )
        for each in proposals
        if linked[each["number"]]
    ]


def read_architecture_records(folder: Path) -> Sequence[Record]:
    """Return the architecture records with their whole text; sources are paths within the folder."""
    found = []
    for path in sorted((folder / "adr").glob("*/*.md")):
        text = re.sub(r"\A---\n.*?\n---\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)
        heading, _, body = text.partition("\n# ")[2].partition("\n") if "\n# " in text else text[2:].partition("\n")
        source = path.relative_to(folder / "adr").as_posix()
        title = re.sub(r"^\d+\.\s*", "", heading.lstrip("# "))
        found.append(Record(source, title, body.strip()))
    return found
