"""An embedder that hashes the words of a text: it needs no model and compares spelling only.

Word stems match inflections, trigrams match identifiers and misspellings. Measured on small sets of decisions, pairs of
words added nothing, and fewer than 1024 dimensions caused noticeable collisions.
"""

from __future__ import annotations

import math
import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from cstp_grpc.common.unicode_text import normalize_text
from cstp_grpc.platform.embedding.embedder import UncachedEmbedder, Vectors

DIMENSIONS = 1024
"""A power of two, because `hash_feature` takes the sign from the next higher bit."""
MAX_CHARACTERS = 8192
"""Characters of a text that are read, which bounds the time it takes."""
TRIGRAM_LENGTH = 3
TRIGRAM_WEIGHT = 0.5
"""Scales the weight of a word's trigrams, relative to the word itself: n of them have together this times sqrt(n)."""
STOP_WEIGHT = 0.01
"""The weight of a stop word. Not 0, so that a text of stop words only has a vector."""
COMMON = """
a after all also an and any are as at be been before being between but by can could did do does each every for from had
has have how i if in into is it its many may more most must my no not now of on once one only or our out over own per
should so some still such than that the their them then there these they this those to too under up us very was we what
were when where which while who why will with would you your
"""
STOP_WORDS = frozenset(COMMON.split())
"""Common English words, which do not identify the subject of a text."""
ENDINGS = (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", ""), ("e", ""))
"""Endings of inflected words and their replacements, tried in this order."""
SHORTEST_STEM = 3
"""Minimum letters of a stem, so that `bus` and `red` stay whole."""

CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
WORD = re.compile(r"[^\W_]+")


class LexicalEmbedder(UncachedEmbedder):
    """Embeds texts by their words."""

    model = "lexical-v1"
    """The name and version of the hashing rules."""
    dimensions = DIMENSIONS

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a unit vector for each text."""
        vectors = np.zeros((len(texts), DIMENSIONS), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            for feature, weight in feature_weights(text[:MAX_CHARACTERS]).items():
                position, sign = hash_feature(feature)
                vector[position] += sign * weight
            length = np.linalg.norm(vector)
            # Features at the same position with opposite signs may have cancelled each other out completely.
            vector /= length or 1.0
            if not length:
                vector[hash_feature(text)[0]] = 1.0
        return vectors


def feature_weights(text: str) -> dict[str, float]:
    """Return the weights of a text's features; repetitions add less and less.

    A text without a word is a single feature, so that it resembles only itself.
    """
    weights: defaultdict[str, float] = defaultdict(float)
    for word in split_words(text):
        weight = STOP_WEIGHT if word in STOP_WORDS else 1.0
        weights["word " + stem_word(word)] += weight
        pieces = char_trigrams(word)
        for piece in pieces:
            weights["piece " + piece] += weight * TRIGRAM_WEIGHT / math.sqrt(len(pieces))
    if not weights:
        return {"text " + text: 1.0}
    return {feature: math.sqrt(weight) for feature, weight in weights.items()}


def split_words(text: str) -> Iterator[str]:
    """Yield the words in lower case and without accents; `camelCase` and `snake_case` are two words each."""
    decomposed = normalize_text(text, "NFKD")
    plain = "".join(character for character in decomposed if not unicodedata.combining(character))
    for match in WORD.finditer(CAMEL_CASE_BOUNDARY.sub(" ", plain)):
        yield match[0].lower()


def stem_word(word: str) -> str:
    """Return a word without its inflected ending; words with digits stay unchanged."""
    if word.isalpha() and not word.endswith("ss"):
        for ending, replacement in ENDINGS:
            if word.endswith(ending) and len(word) - len(ending) >= SHORTEST_STEM:
                return word.removesuffix(ending) + replacement
    return word


def char_trigrams(word: str) -> list[str]:
    """Return the overlapping trigrams of a word, including its boundaries."""
    bounded = f"^{word}$"
    return [bounded[start : start + TRIGRAM_LENGTH] for start in range(len(bounded) - TRIGRAM_LENGTH + 1)]


def hash_feature(feature: str) -> tuple[int, int]:
    """Return the position and the sign of a feature; the same on every machine and in every process."""
    # CRC-32 and not hash(), which is seeded differently in every process. The vectors are stored.
    code = zlib.crc32(feature.encode("utf-8", "surrogatepass"))
    return code % DIMENSIONS, 1 if code & DIMENSIONS else -1
