"""The terms of a text, by which its words and identifiers are found.

An identifier is a term as a unit, and so are its parts: `PEP 703`, `PEP-0703` and `pep703` have the unit `pep 703` and
the parts `pep` and `703`; `snake_case`, `CamelCase`, `v3.7` and `db/pool.py` likewise. Terms are stored as hashes, so
what a text's terms are must not change without a new `ANALYSIS_VERSION`.
"""

from __future__ import annotations

import re
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

ANALYSIS_VERSION = 2
"""The number of the rules in this module and of the weights in `decision_terms`; stored with what they produced."""

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
"""What ends a phrase, if it stands between two words."""
LABEL_GAP = re.compile(r"\s?#?")
"""What may stand between a label and its number: `PEP 703`, `issue #12`."""

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
    """A term of a text; `is_unit` tells an identifier as a whole from a word or a part."""

    text: str
    is_unit: bool = False


def analyze_text(text: str) -> list[Term]:
    """Return the terms of a text in their order, with repetitions."""
    terms: list[Term] = []
    folded = fold_accents(text)
    label, end = "", 0
    for match in JOINED_WORDS.finditer(folded):
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
    """Yield the terms of each two words that stand beside each other, such as `lock file`, in their order.

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
    decomposed = unicodedata.normalize("NFKD", text)
    return "".join(character for character in decomposed if not unicodedata.combining(character))


def split_parts(joined: str) -> list[str]:
    """Return the parts of joined words, in lower case and without leading zeros."""
    spaced = CAMEL_CASE_BOUNDARY.sub(" ", joined)
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
