"""How far a call between agents has come: what keeps agents that ask each other from asking for ever."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

METADATA_KEY: Final = "x-cstp-federation"
"""The name of the metadata, and of the HTTP header, that carries a journey."""
MAX_CHARACTERS: Final = 1536
"""The longest value; a bridge passes no longer one on."""
MAX_HOPS: Final = 64
MAX_PATH: Final = 64
ESCAPED: Final = r"(?:[A-Za-z0-9_.~-]|%[0-9A-F]{2})"
FORM: Final = re.compile(
    rf"id=(?P<id>{ESCAPED}*);hops=(?P<hops>[0-9]{{1,2}});path=(?P<path>(?:{ESCAPED}+(?:,{ESCAPED}+)*)?)"
)


@dataclass(frozen=True, slots=True)
class Journey:
    """A call on its way from agent to agent. It is what callers say, and trusted for nothing but stopping."""

    id: str
    """What the call is about, the same on the whole way."""
    hops: int
    """How many agents one after the other may still be asked; with 0 an agent answers by itself."""
    path: tuple[str, ...] = ()
    """The agents that it went through, the first one first."""

    def encode(self) -> str:
        """Return the value of the metadata."""
        return f"id={escaped(self.id)};hops={self.hops};path={','.join(map(escaped, self.path))}"

    @classmethod
    def decode(cls, text: str | None) -> Journey | None:
        """Return the journey that a call brings, None where it brings none. One that is not understood ends here."""
        if text is None:
            return None
        match = FORM.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
        if match is None:
            return ENDED
        names = match["path"].split(",") if match["path"] else []
        try:
            path = tuple(unescaped(name) for name in names)
            found = cls(unescaped(match["id"]), int(match["hops"]), path)
        except ValueError:
            return ENDED
        return found if found.hops <= MAX_HOPS and len(path) <= MAX_PATH else ENDED

    def onward(self, agent: str) -> Journey:
        """Return the journey of the calls that `agent` makes; it ends where it cannot be told any more."""
        path = (*self.path, agent)
        further = Journey(self.id, self.hops - 1, path)
        told = self.hops > 0 and len(path) <= MAX_PATH and len(further.encode()) <= MAX_CHARACTERS
        return further if told else Journey(self.id, 0, self.path)


ENDED: Final = Journey("", 0)
"""What a journey is taken for that is not understood."""


def escaped(text: str) -> str:
    """Return a text as it stands in metadata."""
    return quote(text, safe="")


def unescaped(text: str) -> str:
    """Return the text that stands in metadata. Raises ValueError where it is none that can be shown."""
    found = unquote(text, errors="strict")
    if not found.isprintable():
        raise ValueError("it holds control characters")
    return found
