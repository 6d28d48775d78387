"""Vectors of the words in a text, hashed: no weights, no meaning beyond spelling.

Word stems find inflections, three-letter pieces find identifiers and misspellings. Measured on small sets of decisions,
pairs of words added nothing, and fewer than 1024 dimensions made collisions felt.
"""

from __future__ import annotations

import math
import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from cstp_grpc.decisions.embedding import Vectors

DIMENSIONS = 1024
MAX_CHARACTERS = 8192
"""How much of a text is read, which bounds the time it takes."""
PIECE = 3
PIECE_WEIGHT = 0.5
"""What all pieces of a word weigh beside the word itself, more of them in a longer word."""
STOP_WEIGHT = 0.01
"""Next to nothing, yet a text of nothing else still has a vector."""
COMMON = """
a after all also an and any are as at be been before being between but by can could did do does each every for from had
has have how i if in into is it its many may more most must my no not now of on once one only or our out over own per
should so some still such than that the their them then there these they this those to too under up us very was we were
what when where which while who why will with would you your
"""
STOP_WORDS = frozenset(COMMON.split())
"""English words that any text may hold."""
ENDINGS = (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))
"""Endings of inflected words and what stands in their place, tried in this order."""
SHORTEST_STEM = 3

HUMP = re.compile(r"(?<=[a-z])(?=[A-Z])")
WORD = re.compile(r"[^\W_]+")


class LexicalEmbedder:
    """Embeds texts by the words they contain."""

    @property
    def model(self) -> str:
        """The name and version of these rules."""
        return "lexical-v1"

    @property
    def dimensions(self) -> int:
        """1024."""
        return DIMENSIONS

    def is_cached(self, text: str) -> bool:  # noqa: ARG002
        """False: no vector is kept."""
        return False

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a unit vector for each text."""
        vectors = np.zeros((len(texts), DIMENSIONS), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for feature, weight in weigh(text[:MAX_CHARACTERS]).items():
                position, sign = place(feature)
                vector[position] += sign * weight
            length = np.linalg.norm(vector)
            # Two features may have met with opposite signs and cancelled all there was.
            vector /= length or 1.0
            if not length:
                vector[place(text)[0]] = 1.0
        return vectors


def weigh(text: str) -> dict[str, float]:
    """Return the features of a text with their weights, repetition counting less and less.

    A text without a word is a feature of its own, so that it resembles itself only.
    """
    weights: defaultdict[str, float] = defaultdict(float)
    for word in words(text):
        weight = STOP_WEIGHT if word in STOP_WORDS else 1.0
        weights["word " + stem(word)] += weight
        pieces = split(word)
        for piece in pieces:
            weights["piece " + piece] += weight * PIECE_WEIGHT / math.sqrt(len(pieces))
    if not weights:
        return {"text " + text: 1.0}
    return {feature: math.sqrt(weight) for feature, weight in weights.items()}


def words(text: str) -> Iterator[str]:
    """Yield the words in lower case and without accents; `camelCase` and `snake_case` are two words each."""
    decomposed = unicodedata.normalize("NFKD", text)
    plain = "".join(character for character in decomposed if not unicodedata.combining(character))
    for match in WORD.finditer(HUMP.sub(" ", plain)):
        yield match[0].lower()


def stem(word: str) -> str:
    """Return a word without its ending; words with digits stay as they are."""
    if word.isalpha() and not word.endswith("ss"):
        for ending, replacement in ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= SHORTEST_STEM:
                return word.removesuffix(ending) + replacement
    return word


def split(word: str) -> list[str]:
    """Return the overlapping pieces of a word, whose beginning and end are part of them."""
    bounded = f"^{word}$"
    return [bounded[start : start + PIECE] for start in range(len(bounded) - PIECE + 1)]


def place(feature: str) -> tuple[int, int]:
    """Return the position of a feature and its sign; the same on every machine and in every process."""
    code = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
    return code % DIMENSIONS, 1 if code & DIMENSIONS else -1
