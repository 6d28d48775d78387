"""What a context carries to a liaison agent, and what it does not."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from cstp_grpc.errors import ConfigError, ContextSharingFailed
from cstp_grpc.liaison.canonical import canonical

if TYPE_CHECKING:
    from cstp_grpc.liaison.paths import Location

MASK = "[redacted]"
"""What is put in the place of a masked value."""

MAX_SECONDS = 2.0
"""How long all rules together may take for one context."""

logger = logging.getLogger(__name__)

Selection: TypeAlias = "Callable[[Mapping[str, Any]], Iterable[list[Location]]]"
"""Returns what each rule selects in a document."""


@dataclass(frozen=True, slots=True)
class RedactionRule:
    """What `path`, an RFC 9535 JSONPath, selects is masked or else dropped."""

    path: str
    mask: bool


@dataclass(frozen=True, slots=True)
class Redacted:
    """A context that may be shared; `json` is its canonical JSON, and `context_hash` the SHA-256 of that, in hex."""

    context: Mapping[str, Any]
    json: str
    context_hash: str


@dataclass(slots=True)
class Edit:
    """What happens at a place of a document and below it."""

    drop: bool = False
    mask: bool = False
    below: dict[int | str, Edit] = field(default_factory=dict)


class Redaction:
    """Applies rules to contexts. Raises ConfigError, which names the setting, where a rule cannot be used.

    All rules select from the context as it is given, so that their order does not matter; where two select the same
    value, it is dropped.
    """

    def __init__(self, rules: Sequence[RedactionRule], max_bytes: int, max_seconds: float = MAX_SECONDS) -> None:
        self._max_bytes = max_bytes
        self._masks = [rule.mask for rule in rules]
        self._max_seconds = max_seconds
        self._select = selection_by(rules, max_seconds) if rules else None

    @property
    def has_rules(self) -> bool:
        """Whether there are any rules."""
        return self._select is not None

    def apply(self, context: Mapping[str, Any]) -> Redacted:
        """Return what may be shared of a context, which is not changed itself.

        Raises ContextSharingFailed where the rules cannot be applied, or where what remains is too large.
        """
        kept = context if self._select is None else self._redacted(context, self._select)
        text = canonical(kept)
        content = text.encode()
        if len(content) > self._max_bytes:
            raise ContextSharingFailed(
                f"the context has {len(content)} bytes after redaction, and liaison.max_context_bytes"
                f" allows {self._max_bytes}",
                metadata={"reason": "the context is too large"},
            )
        return Redacted(kept, text, hashlib.sha256(content).hexdigest())

    def _redacted(self, context: Mapping[str, Any], select: Selection) -> Mapping[str, Any]:
        document = dict(context)
        try:
            edits = edit_of(zip(self._masks, select(document), strict=True))
            return edited_object(document, edits)
        except TimeoutError as error:
            logger.warning("a context was not shared: its redaction took longer than %s s", self._max_seconds)
            raise not_redacted("redaction took too long") from error
        except Exception as error:
            # Whatever it is: what was not redacted must not be shared.
            logger.exception("a context was not shared: it could not be redacted")
            raise not_redacted("redaction failed") from error


def selection_by(rules: Sequence[RedactionRule], max_seconds: float) -> Selection:
    """Return what selects by the paths of rules. Raises ConfigError, which names the setting of each unusable path."""
    # Not loaded without rules: reading paths takes a library for them.
    from cstp_grpc.liaison.paths import PathError, Paths

    paths = Paths(max_seconds)
    queries, lines = [], []
    for number, rule in enumerate(rules):
        try:
            queries.append(paths.read(rule.path))
        except PathError as error:
            lines.append(f"liaison.redaction.{number}.path: {error}")
    if lines:
        raise ConfigError("\n".join(lines))
    return lambda document: paths.find(queries, document)


def not_redacted(reason: str) -> ContextSharingFailed:
    """Return the error for a context to which the rules cannot be applied."""
    return ContextSharingFailed("the context could not be redacted, and is not shared", metadata={"reason": reason})


def edit_of(found: Iterable[tuple[bool, list[Location]]]) -> Edit:
    """Return what has to be done with a document where rules, which mask or else drop, select these places."""
    top = Edit()
    for mask, locations in found:
        for location in locations:
            edit = top
            for part in location:
                edit = edit.below.setdefault(part, Edit())
            if mask:
                edit.mask = True
            else:
                edit.drop = True
    return top


def edited(value: Any, edit: Edit | None) -> Any:
    """Return a value as it remains; what no edit concerns is not copied."""
    if edit is None:
        return value
    if edit.mask:
        return MASK
    return edited_object(value, edit) if isinstance(value, dict) else edited_array(value, edit)


def edited_object(value: Mapping[str, Any], edit: Edit) -> dict[str, Any]:
    """Return an object as it remains."""
    return {
        name: edited(member, below)
        for name, member in value.items()
        if (below := edit.below.get(name)) is None or not below.drop
    }


def edited_array(value: list[Any], edit: Edit) -> list[Any]:
    """Return an array as it remains; what follows a dropped element takes its place."""
    return [
        edited(element, below)
        for index, element in enumerate(value)
        if (below := edit.below.get(index)) is None or not below.drop
    ]
