"""Redaction rules, which mask or drop values of a context before it is shared."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from cstp_grpc.common.canonical_json import encode_canonical_json
from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.errors import ConfigError, ContextSharingFailed

if TYPE_CHECKING:
    from cstp_grpc.modules.liaison.json_path import Location

MASK = "[redacted]"
"""The text in place of a masked value."""

MAX_SECONDS = 2.0
"""Maximum seconds of all rules together for one context. Chosen: a hand-over waits for it; beyond it nothing is
shared."""

logger = logging.getLogger(__name__)

RuleSelector: TypeAlias = "Callable[[Mapping[str, Any]], Iterable[list[Location]]]"
"""Returns the locations that each rule selects in a document."""


@dataclass(frozen=True, slots=True)
class RedactionRule:
    """Mask or drop the values that `path`, an RFC 9535 JSONPath, selects."""

    path: str
    mask: bool


@dataclass(frozen=True, slots=True)
class RedactedContext:
    """A redacted context; `json` is its canonical JSON, and `context_hash` the SHA-256 of that, in hex."""

    context: Mapping[str, Any]
    json: str
    context_hash: str


@dataclass(slots=True)
class RedactionNode:
    """The redaction of a node of a document and of its children."""

    drop: bool = False
    mask: bool = False
    below: dict[int | str, RedactionNode] = field(default_factory=dict)


class Redaction:
    """Apply rules to contexts. The constructor raises ConfigError, which names the setting of an invalid rule.

    All rules select from the original context, so that their order does not matter; a value that is selected for both
    is dropped.
    """

    def __init__(self, rules: Sequence[RedactionRule], max_bytes: int, max_seconds: float = MAX_SECONDS) -> None:
        self._max_bytes = max_bytes
        self._masks = [rule.mask for rule in rules]
        self._max_seconds = max_seconds
        self._select = compile_rules(rules, max_seconds) if rules else None

    @property
    def has_rules(self) -> bool:
        return self._select is not None

    def apply(self, context: Mapping[str, Any]) -> RedactedContext:
        """Return a redacted copy of a context.

        Raises ContextSharingFailed if the rules cannot be applied, or if the result is too large.
        """
        kept = context if self._select is None else self._apply_rules(context, self._select)
        text = encode_canonical_json(kept)
        content = text.encode()
        # Judged after the rules, which may drop most of it.
        if len(content) > self._max_bytes:
            raise ContextSharingFailed(
                f"the context has {len(content)} bytes after redaction, and liaison.max_context_bytes"
                f" allows {self._max_bytes}",
                metadata={"reason": "the context is too large"},
            )
        return RedactedContext(kept, text, hashlib.sha256(content).hexdigest())

    def _apply_rules(self, context: Mapping[str, Any], select: RuleSelector) -> Mapping[str, Any]:
        document = dict(context)
        try:
            edits = build_redaction_tree(zip(self._masks, select(document), strict=True))
            return redact_object(document, edits)
        except TimeoutError as error:
            logger.warning("a context was not shared: its redaction took longer than %s s", self._max_seconds)
            raise redaction_error("redaction took too long") from error
        except Exception as error:
            # Any error: a context without redaction must not be shared.
            logger.exception("a context was not shared: it could not be redacted")
            raise redaction_error("redaction failed") from error


def compile_rules(rules: Sequence[RedactionRule], max_seconds: float) -> RuleSelector:
    """Compile the paths of rules. Raises ConfigError, which names the setting of each invalid path."""
    # Not loaded without rules: reading paths takes a library for them.
    from cstp_grpc.modules.liaison.json_path import InvalidJsonPath, JsonPathEngine

    paths = JsonPathEngine(max_seconds)
    queries, lines = [], []
    for number, rule in enumerate(rules):
        try:
            queries.append(paths.parse(rule.path))
        except InvalidJsonPath as error:
            lines.append(f"liaison.redaction.{number}.path: {error}")
    if lines:
        raise ConfigError("\n".join(lines))
    return lambda document: paths.find(queries, document)


def redaction_error(reason: str) -> ContextSharingFailed:
    return ContextSharingFailed("the context could not be redacted, and is not shared", metadata={"reason": reason})


def build_redaction_tree(found: Iterable[tuple[bool, list[Location]]]) -> RedactionNode:
    """Build the tree of redactions from the locations that mask or drop rules select."""
    top = RedactionNode()
    for mask, locations in found:
        for location in locations:
            edit = top
            for part in location:
                # One tree for all rules, applied in one pass: indexes of arrays would shift if the rules were applied
                # one after another.
                edit = edit.below.setdefault(part, RedactionNode())
            if mask:
                edit.mask = True
            else:
                edit.drop = True
    return top


def redact_value(value: Any, edit: RedactionNode | None) -> Any:
    """Return a redacted value; unaffected parts are not copied."""
    if edit is None:
        return value
    # Before values below it: nothing inside a masked value is redacted.
    if edit.mask:
        return MASK
    return redact_object(value, edit) if isinstance(value, dict) else redact_array(value, edit)


def redact_object(value: Mapping[str, Any], edit: RedactionNode) -> dict[str, Any]:
    return {
        name: redact_value(member, below)
        for name, member in value.items()
        if (below := edit.below.get(name)) is None or not below.drop
    }


def redact_array(value: list[Any], edit: RedactionNode) -> list[Any]:
    """Return a redacted array; the elements after a dropped one move up."""
    return [
        redact_value(element, below)
        for index, element in enumerate(value)
        if (below := edit.below.get(index)) is None or not below.drop
    ]
