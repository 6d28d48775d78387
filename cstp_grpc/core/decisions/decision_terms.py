"""The terms of a decision, by which its words and identifiers are found, each with its impact and its fields.

An identifier is a term as a unit, and so are its parts: `PEP 703`, `PEP-0703` and `pep703` have the unit `pep 703` and
the parts `pep` and `703`; `snake_case`, `CamelCase`, `v3.7` and `db/pool.py` likewise. Terms are stored as hashes, so
the terms of a text must not change without a new `ANALYSIS_VERSION`.

The impact is that of BM25F (Zaragoza et al., 2004, "Microsoft Cambridge at TREC 13"): occurrences are weighted and
normalised by the length of their field, summed, and saturated. The mean lengths are constants here, so that an impact
follows from its decision alone: it is stored once and is the same on every server.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from enum import IntFlag
from functools import lru_cache
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.unicode_text import normalize_text
from cstp_grpc.core.decisions.model import Decision

ANALYSIS_VERSION = 3
"""Version of the rules in this module and of the weights in `decision_terms`; stored with the terms."""

FREQUENT_WORDS = """
a about all also an and any are as at be been being but by can could did do does for from had has have how i if in into
is it its may more most must my no not of on or our out over own should so some such than that the their them then
there these they this those to too up us very was we were what when where which while who why will with would you your
"""
STOP_WORDS = frozenset(FREQUENT_WORDS.split())
"""The most frequent words of English, which say nothing about a subject."""

JOINED_WORDS = re.compile(r"[^\W_]+(?:(?:[-./:@#'’\\]|_+|::)[^\W_]+)*")
"""Words with nothing but connecting characters between them."""

CONTRACTION = re.compile(r"(?:n['’]t|['’](?:s|t|re|ve|ll|d|m))\b", re.IGNORECASE)
CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z\d])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
PART = re.compile(r"\d+|[^\W\d_]+")
SENTENCE_END = re.compile(r"[.!?;:\n]")
"""Between two words, it ends a phrase."""
LABEL_GAP = re.compile(r"\s?#?")
"""Separator of a label and its number: `PEP 703`, `issue #12`."""

UNSPACED_SCRIPT = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
"""Characters of scripts without spaces between words (Thai, Lao, Japanese, Chinese)."""

MAX_LABEL_LENGTH = 12
"""Characters of a label before a number. Chosen: `requirement 7` is hardly a name, `milestone 7` is."""

MAX_UNIT_PARTS = 6
"""Parts of a unit; of a longer path, the last ones, in which its file is named."""

ENDINGS = (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))
"""Endings of inflected English words and their replacements, tried in this order."""

SHORTEST_STEM = 3
DOUBLED_BEFORE_ENDING = frozenset("bdgmnprt")
"""Consonants that English doubles before -ing and -ed: `stopped`, but not `fell` or `passed`."""


@dataclass(frozen=True, slots=True)
class Term:
    """A term of a text; `is_unit` is True for a whole identifier, False for a word or a part."""

    text: str
    is_unit: bool = False


def analyze_text(text: str) -> list[Term]:
    """Return the terms of a text in their order, with repetitions."""
    terms: list[Term] = []
    folded = fold_accents(text)
    label, end = "", 0
    for match in JOINED_WORDS.finditer(folded):
        # Otherwise `don't` and `server's` would have the parts `t` and `s`.
        parts = split_parts(CONTRACTION.sub("", match[0]))
        if not parts:
            continue
        if label and parts[0].isdigit() and LABEL_GAP.fullmatch(folded, end, match.start()):
            terms.append(Term(f"{label} {parts[0]}", is_unit=True))
        if len(parts) > 1:
            terms.extend(Term(unit, is_unit=True) for unit in identifier_units(parts))
        for part in parts:
            terms.extend(word_terms(part))
        label, end = parts[-1] if is_label(parts[-1]) else "", match.end()
    return terms


def pair_words(text: str) -> Iterator[str]:
    """Yield the terms of each two neighbouring words, such as `lock file`, in their order.

    A stop word, a number or the end of a sentence separates them; the parts of an identifier make units instead.
    """
    folded = fold_accents(text)
    previous, end = "", 0
    for match in JOINED_WORDS.finditer(folded):
        if SENTENCE_END.search(folded, end, match.start()):
            previous = ""
        end = match.end()
        words = [word_terms(part) for part in split_parts(CONTRACTION.sub("", match[0]))]
        if words and previous and words[0] and not words[0][0].text.isdigit():
            yield f"{previous} {words[0][0].text}"
        last = words[-1][-1].text if words and words[-1] else ""
        previous = "" if last.isdigit() else last


def hash_term(text: str) -> int:
    """Return the 32-bit hash of a term; the same on every machine and in every process."""
    # CRC-32 and not hash(), which is seeded differently in every process. Of a million terms, one in 4000 shares the
    # hash of another, which adds a wrong occurrence here and there.
    return zlib.crc32(text.encode("utf-8", "surrogatepass"))


def fold_accents(text: str) -> str:
    """Return a text without accents, and with compatibility characters such as ligatures spelled out."""
    if text.isascii():
        return text
    decomposed = normalize_text(text, "NFKD")
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def split_parts(joined: str) -> list[str]:
    """Return the parts of joined words, in lower case and without leading zeros."""
    spaced = CAMEL_CASE_BOUNDARY.sub(" ", joined)
    # `PEP 0008` and `PEP 8` are one.
    return [part.lstrip("0") or "0" if part.isdigit() else part.casefold() for part in PART.findall(spaced)]


def identifier_units(parts: Sequence[str]) -> Iterator[str]:
    """Yield the units of an identifier: the whole, and each two neighbours, so that a part of a path is found."""
    yield " ".join(parts[-MAX_UNIT_PARTS:])
    if len(parts) > 2:
        for first, second in pairwise(parts[-MAX_UNIT_PARTS:]):
            yield f"{first} {second}"


def is_label(part: str) -> bool:
    """Return True if a word can be the label of a number, such as `PEP` of `PEP 703`."""
    return part.isalpha() and len(part) <= MAX_LABEL_LENGTH and part not in STOP_WORDS


@lru_cache(maxsize=20_000)
def word_terms(part: str) -> tuple[Term, ...]:
    """Return the terms of one word: its stem, or pairs of characters in a script without spaces; none if it is a stop
    word."""
    if UNSPACED_SCRIPT.search(part):
        # Pairs of characters, because telling words apart there takes a dictionary.
        return tuple(Term(part[start : start + 2]) for start in range(max(len(part) - 1, 1)))
    return () if part in STOP_WORDS else (Term(stem_word(part)),)


def stem_word(word: str) -> str:
    """Return a word without its inflected ending; only English endings are known."""
    if not word.isascii() or word.endswith("ss"):
        return word
    for ending, replacement in ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= SHORTEST_STEM:
            stem = word.removesuffix(ending) + replacement
            doubled = ending in ("ing", "ed") and stem[-1] == stem[-2] and stem[-1] in DOUBLED_BEFORE_ENDING
            return stem[:-1] if doubled else stem
    return word


MAX_ANALYZED = 65_536
"""Characters of a text that are analysed, which takes about 40 ms. Chosen: no known record is longer."""

SATURATION = 1.2
"""The k1 of BM25: a term that occurs so often in a field of mean length has half of the possible impact."""

TITLE_SHARE = 0.2
"""Share of the greatest impact that only a term of the title has: the title names the subject of the decision, and
saturation hides how often a term occurs. Measured: 0.15 to 0.3 give similar rankings; without it, a right record with
two words of the query in its title ranks behind one that mentions them."""

MAX_QUERY_PAIRS = 32
"""Pairs of neighbouring words of a query that are searched. Chosen: an intent begins with its subject."""

TERM_TYPE = np.dtype([("hash", "<u4"), ("impact", "<f2"), ("fields", "u1")])
"""One term as it is stored; entries are sorted by hash."""

Terms = NDArray[Any]
"""Entries of `TERM_TYPE`."""

NO_TERMS: Terms = np.empty(0, TERM_TYPE)


class TermField(IntFlag):
    """Where a term occurs; `NAME` is for the units that identify the decision itself."""

    NAME = 1
    TITLE = 2
    LESSON = 4
    UNIT = 8
    """It is the unit of an identifier."""


@dataclass(frozen=True, slots=True)
class FieldWeight:
    """How occurrences in a field count: their weight, the mean length in terms, and the share of the length that is
    normalised away (the b of BM25)."""

    weight: float
    mean_length: float
    normalization: float


@dataclass(frozen=True, slots=True)
class SearchedContent:
    """The parts of a decision that give its terms; `labels` are its tags, category, project and source."""

    id: str
    title: str
    context: str | None
    notes: str | None
    reasons: tuple[str, ...]
    labels: tuple[str, ...]
    source: str | None

    @classmethod
    def of(cls, decision: Decision) -> SearchedContent:
        labels = (*decision.tags, decision.category, decision.project, decision.source)
        return cls(
            decision.id,
            decision.title,
            decision.context,
            decision.notes,
            tuple(reason.text for reason in decision.reasons),
            tuple(label for label in labels if label),
            decision.source,
        )


TITLE = FieldWeight(2.0, 8, 0.3)
LABELS = FieldWeight(1.0, 6, 0.3)
"""Tags, category, project, and the path or key that the decision was imported from."""
LESSON = FieldWeight(1.5, 25, 0.5)
CONTEXT = FieldWeight(1.0, 80, 0.6)
"""The context and the texts of reasons."""

TITLE_HEAD = re.compile(
    r"\W*((?:[A-Z]{1,12}[-_])*[^\W\d_]{1,12}[-_ #]?\d+(?:[-.]\d+)*)(?:\s*[:–—|\])]|\s+-\s|\.\s|\s*$)"
)
"""Labels and a number at the beginning of a title, and the separator after them. Labels before the last are in
capitals: `api-gateway-v2: …` is about a gateway."""

NUMBERED_NAME = re.compile(r"(?:((?:[^\W\d_]{1,12}[-_ .]){0,4}[^\W\d_]+)[-_ .#]?)?0*(\d+)(?!\d|\.\d)")
"""The labels, such as `ORB-ADR-NET`, and the number that a file's name begins with."""
RECORD_LABELS = ("adr", "decision", "record")
"""Words for a record whose file name begins with a number."""


@lru_cache(maxsize=512)
def cached_terms(content: SearchedContent) -> Terms:
    """Return the terms of a content.

    Cached, so that a domain can compute them before the transaction in which the store needs them.
    """
    return analyze_content(content)


def analyze_content(content: SearchedContent) -> Terms:
    """Return the terms of a content, sorted by hash."""
    frequencies: defaultdict[str, float] = defaultdict(float)
    fields: defaultdict[str, int] = defaultdict(int)
    for text, weight, flag in weighted_fields(content):
        terms = analyze_text(text[:MAX_ANALYZED])
        scale = weight.weight / (1 - weight.normalization + weight.normalization * len(terms) / weight.mean_length)
        for term, count in Counter(terms).items():
            frequencies[term.text] += count * scale
            fields[term.text] |= flag | (TermField.UNIT if term.is_unit else 0)
    for name in {*names_of_id(content.id), *names_in_title(content.title), *names_in_source(content.source or "")}:
        frequencies[name] += TITLE.weight
        fields[name] |= TermField.NAME | TermField.UNIT
    # Pairs of the title alone: those of the context would make the index half as large again, and find no more.
    for pair in pair_words(content.title[:MAX_ANALYZED]):
        frequencies[pair] += TITLE.weight
        fields[pair] |= TermField.TITLE
    # Two terms with one hash count as one, with the greater impact.
    rows = sorted(
        ((hash_term(text), term_impact(count, fields[text]), fields[text]) for text, count in frequencies.items()),
        key=lambda row: (row[0], -row[1]),
    )
    found = np.array(rows, TERM_TYPE)
    first: Terms = found[np.diff(found["hash"].astype(np.int64), prepend=-1) != 0]
    return first


def term_impact(frequency: float, fields: int) -> float:
    saturated = frequency / (frequency + SATURATION)
    return (1 - TITLE_SHARE) * saturated + (TITLE_SHARE if fields & TermField.TITLE else 0)


def weighted_fields(content: SearchedContent) -> Iterator[tuple[str, FieldWeight, int]]:
    """Yield the texts that are searched, with the weight and the flag of their field."""
    yield content.title, TITLE, TermField.TITLE
    yield "\n".join(content.labels), LABELS, 0
    yield content.notes or "", LESSON, TermField.LESSON
    yield "\n".join((content.context or "", *content.reasons)), CONTEXT, 0


def names_of_id(decision_id: str) -> Iterable[str]:
    return (term.text for term in analyze_text(decision_id)[:1] if term.is_unit)


def names_in_title(title: str) -> Iterator[str]:
    """Yield the identifier with a number that a title begins with: `PEP 703 – …`, `INC-2041: …`, `[ABC-1] …`.

    Something must separate it from the rest: `Python 3 in production` is about Python 3, which many decisions may be.
    """
    head = TITLE_HEAD.match(fold_accents(title))
    if head is not None:
        yield " ".join(split_parts(head[1]))


def names_in_source(source: str) -> Iterator[str]:
    """Yield the names of a record that its file or entry gives by number: `adr 12` for `adr/0012-dns.md`."""
    path, _, entry = source.partition("#")
    *folders, file = path.replace("\\", "/").split("/")
    numbered = NUMBERED_NAME.match(entry) or NUMBERED_NAME.match(file)
    if numbered is None:
        return
    label, number = numbered.groups()
    stem = file.partition(".")[0]
    labels = [" ".join(PART.findall(label))] if label else [*RECORD_LABELS, *folders[-1:], *([stem] if entry else [])]
    for written in labels:
        yield from (f"{term} {number}" for term in {written.casefold(), written.casefold().removesuffix("s")})


@dataclass(frozen=True, slots=True)
class QueryTerm:
    """A term of a query: its hash, how often it occurs, and whether it is the unit of an identifier or a pair of
    neighbouring words."""

    hash: int
    count: int
    is_unit: bool
    is_pair: bool = False

    @property
    def is_compound(self) -> bool:
        """Whether its parts are terms, too, so that it takes nothing away if no decision has it."""
        return self.is_unit or self.is_pair


@lru_cache(maxsize=512)
def is_numbered_identifier(text: str) -> bool:
    """Return True if a query is nothing but identifiers with numbers, such as `PEP 703`, and stop words."""
    terms = analyze_text(text)
    units = [term.text.split() for term in terms if term.is_unit]
    # Neighbours in `ORB-ADR-7` have no number, the whole has one.
    numbered = {part for unit in units if any(map(str.isdigit, unit)) for part in unit}
    words = {word for part in numbered for word in word_terms(part)}
    return bool(numbered) and words.issuperset(term for term in terms if not term.is_unit)


def spelled_units(text: str) -> Iterator[str]:
    """Yield the units of identifiers with several labels that are written as words, such as `ORB ADR NET 7`.

    Any of the labels may be the first one: only a record with that name shows which it is.
    """
    folded = fold_accents(text)
    labels: list[str] = []
    end = 0
    for match in JOINED_WORDS.finditer(folded):
        if not LABEL_GAP.fullmatch(folded, end, match.start()):
            labels = []
        for part in split_parts(CONTRACTION.sub("", match[0])):
            if part.isdigit():
                yield from (" ".join((*labels[-count:], part)) for count in range(2, len(labels) + 1))
            labels = [*labels[2 - MAX_UNIT_PARTS :], part] if is_label(part) else []
        end = match.end()


@lru_cache(maxsize=512)
def query_terms(text: str) -> tuple[QueryTerm, ...]:
    """Return the terms of a query, each once, in the order of their hashes."""
    counts = Counter(analyze_text(text))
    for unit in islice(spelled_units(text), MAX_QUERY_PAIRS):
        counts.setdefault(Term(unit, is_unit=True), 1)
    numbered = {term.text for term in counts if term.is_unit and any(map(str.isdigit, term.text.split()))}
    found = []
    for term, count in counts.items():
        # `orb adr` of `ORB-ADR-7` identifies nothing.
        is_pair = (
            term.is_unit and term.text not in numbered and any(f" {term.text} " in f" {unit} " for unit in numbered)
        )
        found.append(QueryTerm(hash_term(term.text), count, term.is_unit and not is_pair, is_pair))
    pairs = Counter(islice(pair_words(text), MAX_QUERY_PAIRS))
    found += [QueryTerm(hash_term(pair), count, is_unit=False, is_pair=True) for pair, count in pairs.items()]
    return tuple(sorted(found, key=lambda term: (term.hash, term.is_unit, term.is_pair)))
