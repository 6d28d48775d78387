"""The terms of decisions."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cstp_grpc.contract.enums import DecisionStatus, Visibility
from cstp_grpc.core.decisions.decision_terms import (
    SearchedContent,
    TermField,
    analyze_content,
    hash_term,
    is_numbered_identifier,
    query_terms,
    spelled_units,
)
from cstp_grpc.core.decisions.model import Decision, Reason
from tests.named_case import named_case


def terms_of(title: str = "any", **changes: object) -> dict[int, tuple[float, int]]:
    """The terms of a decision by hash, with impact and fields."""
    decision = Decision(
        "dec-00ff",
        title,
        DecisionStatus.DECIDED,
        datetime(2026, 1, 1, tzinfo=UTC),
        "alice",
        Visibility.SHARED,
        **changes,  # type: ignore[arg-type]
    )
    found = analyze_content(SearchedContent.of(decision))
    return {int(key): (float(impact), int(fields)) for key, impact, fields in found.tolist()}


def impact(term: str, terms: dict[int, tuple[float, int]]) -> float:
    return terms.get(hash_term(term), (0.0, 0))[0]


def named(term: str, terms: dict[int, tuple[float, int]]) -> bool:
    return bool(terms.get(hash_term(term), (0.0, 0))[1] & TermField.NAME)


def test_every_field_is_found() -> None:
    terms = terms_of(
        "queue",
        context="broker",
        notes="poison",
        reasons=(Reason("because", "throughput"),),
        tags=("kafka",),
        category="messaging",
        project="atlas",
        source="docs/adr/0012-events.md",
    )
    for term in ("queu", "broker", "poison", "throughput", "kafka", "messag", "atla", "event"):
        assert impact(term, terms) > 0, term
    assert terms[hash_term("poison")][1] == TermField.LESSON


def test_a_query_may_be_nothing_but_numbered_identifiers() -> None:
    for text, only in [
        ("PEP 703", True),
        ("what was pep-0703?", True),
        ("INC-2041 and v3.7", True),
        ("ORB-ADR-NET-0007", True),
        ("docs/adr/0012", True),
        ("db/pool.py", False),
        ("blue-green", False),
        ("what became of PEP 703?", False),
        ("Add a queue", False),
        ("the", False),
        ("", False),
    ]:
        with named_case(text, only):
            assert is_numbered_identifier(text) is only


def test_pairs_of_words_are_those_of_the_title() -> None:
    terms = terms_of("Adopt a lock file format", context="A requirements file lists packages.")
    assert terms[hash_term("lock fil")][1] == terms[hash_term("fil format")][1] == TermField.TITLE
    assert impact("requirement fil", terms) == 0
    wanted = {term.hash: term.is_compound for term in query_terms("which lock file") if term.is_pair}
    assert wanted == {hash_term("lock fil"): True}


def test_a_title_says_more_than_a_context_and_a_short_context_more_than_a_long_one() -> None:
    filler = " ".join(f"word{number}" for number in range(500))
    in_title, in_short, in_long = (
        impact("queu", terms)
        for terms in (
            terms_of("queue"),
            terms_of(context="queue words"),
            terms_of(context=f"queue {filler}"),
        )
    )
    assert 1 > in_title > in_short > in_long > 0


def test_the_identifier_that_a_title_begins_with_names_the_decision() -> None:
    for title, name in [
        ("PEP 703 – Making the lock optional", "pep 703"),
        ("PEP-0703: Making the lock optional", "pep 703"),
        ("INC-2041: pool exhausted", "inc 2041"),
        ("[ABC-1] Use a queue", "abc 1"),
        ("ADR 12. Use a queue", "adr 12"),
        ("RFC 9110", "rfc 9110"),
        ("CVE-2024-3094: replace the library", "cve 2024 3094"),
        ("ORB-ADR-NET-0007: Route by region", "orb adr net 7"),
    ]:
        with named_case(title, name):
            assert named(name, terms_of(title))


@pytest.mark.parametrize(
    ("title", "unit"),
    [
        ("Use what PEP 703 proposes", "pep 703"),
        ("Python 3 in production", "python 3"),
        ("Python 2.6 release schedule", "python 2"),
        ("api-gateway-v2: restart", "api gateway v 2"),
    ],
)
def test_a_mention_elsewhere_names_nothing(title: str, unit: str) -> None:
    assert not named(unit, terms_of(title))


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("docs/adr/0012-use-a-queue.md", ["adr 12", "decision 12"]),
        ("docs/decisions/0012-use-a-queue.md", ["adr 12", "decision 12"]),
        ("pep-0703", ["pep 703"]),
        ("rfcs/RFC-7.md", ["rfc 7"]),
        ("peps.jsonl#703", ["pep 703", "peps 703"]),
        ("records/ORB-ADR-NET-0007-route-calls-of-far-callers-by-region.md", ["orb adr net 7"]),
        ("records/orb_adr_net_7.md", ["orb adr net 7"]),
    ],
)
def test_the_number_of_a_source_names_the_decision(source: str, names: list[str]) -> None:
    terms = terms_of(source=source)
    assert [name for name in names if not named(name, terms)] == []


@pytest.mark.parametrize(
    "query", ["ORB-ADR-NET-0007", "orb-adr-net-7", "ORB ADR NET 7", "read orb_adr_net_0007 first", "see ORB-ADR NET #7"]
)
def test_spellings_of_an_identifier_of_several_parts_ask_for_one_unit(query: str) -> None:
    wanted = [term for term in query_terms(query) if term.hash == hash_term("orb adr net 7")]
    assert [(term.count, term.is_unit) for term in wanted] == [(1, True)]


def test_an_id_names_its_decision() -> None:
    assert named("dec 0 ff", terms_of())
    assert hash_term("dec 0 ff") in {term.hash for term in query_terms("what became of dec-00ff?") if term.is_unit}


@given(st.text(max_size=200), st.none() | st.text(max_size=500), st.none() | st.text(max_size=100))
@example("0bB0", None, None)
def test_terms_are_sorted_and_their_impacts_are_shares(title: str, context: str | None, notes: str | None) -> None:
    decision = Decision(
        "dec-1",
        title,
        DecisionStatus.DECIDED,
        datetime(2026, 1, 1, tzinfo=UTC),
        "a",
        Visibility.SHARED,
        context=context,
        notes=notes,
    )
    found = analyze_content(SearchedContent.of(decision))
    assert (np.diff(found["hash"].astype(np.int64)) > 0).all()
    assert ((found["impact"] > 0) & (found["impact"] <= 1)).all()
    joined = "\n".join(filter(None, (title, context, notes)))
    # Units that only the name of a file could have are added to a query, and are not in the text.
    spelled = {hash_term(unit) for text in (joined, title, context or "", notes or "") for unit in spelled_units(text)}
    wanted = {term.hash for term in query_terms(joined) if not term.is_pair} - spelled
    # A unit may reach across the border of two fields, and pairs are those of the title.
    words = {
        term.hash
        for text in (title, context or "", notes or "")
        for term in query_terms(text)
        if text is title or not term.is_pair
    } - spelled
    assert words <= set(found["hash"].tolist())
    assert len(wanted - words) <= 2
