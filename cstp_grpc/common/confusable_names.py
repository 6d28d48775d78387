"""Names that people take for one another: stray spaces, mixed alphabets, and letters that look alike.

Unicode's table of confusable characters (UTS #39) has 6 000 rows, mostly of signs that no name has. This module has
the letters of the alphabets that look like Latin ones, and refuses names that mix those alphabets.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from cstp_grpc.common.unicode_text import INVISIBLE, fold_name, normalize_text

ALPHABETS: Final = frozenset({"ARMENIAN", "CHEROKEE", "COPTIC", "CYRILLIC", "GEORGIAN", "GREEK", "LATIN", "LISU"})
"""Alphabets with letters that look like those of another, by the first word of the names of their letters."""
NOT_SHOWN: Final = re.compile("[\u2800\ufe00-\ufe0f]")
"""More characters without a glyph: the empty braille pattern, and variation selectors."""
LOOKALIKES: Final = str.maketrans(
    "АВЕЗКМНОРСТУҮХЅІӀЈԚԜаеорсухѕіјԁԛԝһӏкгүѵΑΒΕΖΗΙΚΜΝΟΡΤΥΧαικνοργυχϲϳօոսհցıɑɡ01I|‐‒–—−",
    "ABE3KMHOPCTYYXSIlJQWaeopcyxsijdqwhlkryvABEZHIKMNOPTYXaikvopyuxcjonuhgiagolll-----",
)
"""The letters, digits and dashes that look like others. A capital I looks like a small l."""


def find_name_fault(name: str) -> str | None:
    """Return the reason why a name can be mistaken for another one; None if it is clear."""
    if name != " ".join(name.split()):
        return "must not begin or end with a space, nor have two in a row, nor spaces of another kind"
    if INVISIBLE.search(name) or NOT_SHOWN.search(name):
        return "must not have invisible characters"
    letters = (unicodedata.name(each, "") for each in normalize_text(name, "NFKC") if each.isalpha())
    alphabets = sorted({letter.split(" ")[0] for letter in letters} & ALPHABETS)
    if len(alphabets) > 1:
        return f"must not mix letters of several alphabets ({', '.join(each.title() for each in alphabets)})"
    return None


class NameIndex:
    """Names by their visual form."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names: dict[str, str] = {}
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        for skeleton in find_skeletons(name):
            self._names.setdefault(skeleton, name)

    def find_lookalike(self, name: str) -> str | None:
        """Return another name that looks like this one, or None."""
        found = (self._names.get(skeleton) for skeleton in find_skeletons(name))
        return next((each for each in found if each is not None and each != name), None)


def find_skeletons(name: str) -> tuple[str, str]:
    """Return two forms of a name; names that look alike share at least one form."""
    shown = " ".join(normalize_text(NOT_SHOWN.sub("", INVISIBLE.sub("", name)), "NFKC").split())
    alike = fold_name(shown.translate(LOOKALIKES)).translate(LOOKALIKES)
    return fold_name(shown), alike.replace("rn", "m").replace("vv", "w")
