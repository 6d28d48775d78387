"""Which media types a caller's `Accept` asks for."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Accept:
    """What the values of `Accept` say: media ranges in lower case, each with its quality from 0 to 1."""

    ranges: Sequence[tuple[str, float]]

    @classmethod
    def read(cls, values: Iterable[str]) -> Accept:
        """Return what the values of the header say; a quality that is no number counts as 1."""
        return cls([read_range(item) for value in values for item in value.split(",")])

    def prefer(self, offered: Sequence[str]) -> str | None:
        """Return the media type among those offered that is preferred, or None if none is acceptable.

        A type that is asked for by its name goes before one that only a range such as `*/*` allows; between equals it
        is the first offered.
        """
        best = max(offered, key=self._rate)
        return best if self._rate(best)[0] > 0 else None

    def _rate(self, media_type: str) -> tuple[float, int]:
        """Return the quality of the most specific range that covers a media type, and how specific that is."""
        covering = ("*/*", f"{media_type.partition('/')[0]}/*", media_type)
        found = [(covering.index(name), quality) for name, quality in self.ranges if name in covering]
        specific, quality = max(found, default=(0, 0.0))
        return quality, specific


def read_range(text: str) -> tuple[str, float]:
    """Return a media range without its parameters, and its quality."""
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    given = [parameter.removeprefix("q=") for parameter in parameters if parameter.startswith("q=")]
    try:
        quality = float(given[0]) if given else 1.0
    except ValueError:
        quality = 1.0
    return name, min(max(quality, 0.0), 1.0) if math.isfinite(quality) else 1.0
