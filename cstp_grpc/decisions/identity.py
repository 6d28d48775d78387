"""Which decision is which: identifiers, and the hash that tells one content from another."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import UTC, datetime

from cstp_grpc.decisions.model import DecisionContent, Links, Reason
from cstp_grpc.storage.text import storable


def recorded_id() -> str:
    """Return a new identifier that nobody can guess."""
    return f"dec-{secrets.token_hex(10)}"


def imported_id(agent: str, source: str) -> str:
    """Return the identifier of an agent's decision from a source, whether it was imported already or not."""
    return f"dec-{digest([agent, source])[:20]}"


def content_hash(content: DecisionContent, links: Links, superseded_by: tuple[str, ...] = ()) -> str:
    """Return the SHA-256, in hexadecimal, of a tidy content and its links.

    What is absent or empty is left out, so that a field which the contract gains later changes no present hash.
    """
    fields = {**asdict(content), **asdict(links), "superseded_by": superseded_by}
    return digest({name: value for name, value in fields.items() if value not in (None, ())})


def digest(value: object) -> str:
    """Return the SHA-256, in hexadecimal, of the canonical JSON of a value that may hold instants."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=datetime.isoformat)
    return hashlib.sha256(text.encode()).hexdigest()


def tidy(content: DecisionContent) -> DecisionContent:
    """Return a content as it is kept, so that the same decision always has the same hash.

    Empty texts are absent, no tag is there twice, the date is in UTC, and characters that no database keeps are
    replaced by U+FFFD.
    """
    return replace(
        content,
        title=storable(content.title),
        context=text_or_none(content.context),
        category=text_or_none(content.category),
        confidence=None if content.confidence is None else float(content.confidence),
        date=None if content.date is None else content.date.astimezone(UTC),
        notes=text_or_none(content.notes),
        reasons=tuple(tidy_reason(reason) for reason in content.reasons),
        tags=distinct(content.tags),
        project=text_or_none(content.project),
    )


def tidy_reason(reason: Reason) -> Reason:
    """Return a reason as it is kept."""
    strength = None if reason.strength is None else float(reason.strength)
    return Reason(storable(reason.type), storable(reason.text), strength)


def text_or_none(text: str | None) -> str | None:
    """Return a text that every database keeps as it is, None where there is none."""
    return storable(text) if text else None


def tidy_links(links: Links) -> Links:
    """Return links as they are kept: in the order of their identifiers, each once."""
    return Links(ordered(links.supersedes), ordered(links.depends_on), ordered(links.relates_to))


def ordered(ids: Iterable[str]) -> tuple[str, ...]:
    """Return identifiers in their order, each once."""
    return tuple(sorted(set(map(storable, ids))))


def distinct(texts: Iterable[str]) -> tuple[str, ...]:
    """Return texts that every database keeps, in their order, each once."""
    return tuple(dict.fromkeys(storable(text) for text in texts))
