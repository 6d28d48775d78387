"""Resolve the keys of a context to the names of declared inputs.

The snake case and the camel case of a declared name are the same name: `affects_production` gives `affectsProduction`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from cstp_grpc.guardrails.input_values import ContradictoryInput
from cstp_grpc.guardrails.model import IgnoredInput

CONFIRMED_CHECKS_KEY = "confirmedChecks"
"""The key of an announcement's metadata that lists the texts of the checks that were made. The server reads it, so that
it is known even if no guardrail reads it."""
MAX_IGNORED = 100
"""Maximum number of ignored keys that a verdict lists. Chosen: an answer need not repeat a context of 10 000 keys."""
MAX_KEY_CHARACTERS = 100
"""Maximum length of an ignored key in a verdict, and of one that is compared with declared names: as long as those."""
MAX_CACHED_KEYS = 1_000
"""Maximum number of ignored keys whose closest names are kept: at most a few hundred kilobytes."""
MIN_SIMILARITY = 0.45
"""The least share of common trigrams (Dice's coefficient) of names that resemble each other. Chosen by trying:
`production` and `affectsProduction` have 0.58, `code_reviewed` and `codeReviewCompleted` 0.63, other pairs of the
default rulebook's words less than 0.3."""
MAX_COMPARED_NAMES = 40
"""Maximum number of declared names with which a key is compared. Measured: 40 take about 30 us, however many are
declared and however much they resemble each other; a call may send keys that nobody knows by the thousand."""

WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
UNDERSCORED_WORD = re.compile(r"(?<=[A-Za-z0-9])_+([A-Za-z0-9])")


def name_spellings(name: str) -> frozenset[str]:
    """Return a name in snake case, in camel case, and as it is."""
    snake = WORD_START.sub("_", name).lower()
    camel = UNDERSCORED_WORD.sub(lambda match: match[1].upper(), snake)
    return frozenset({name, snake, camel})


def find_spelling_clashes(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of different names that have a spelling in common."""
    first: dict[str, str] = {}
    for name in names:
        others = {first.setdefault(spelling, name) for spelling in sorted(name_spellings(name))}
        yield from ((name, other) for other in sorted(others - {name}))


class InputNames:
    """The declared inputs; `others` are further keys that a context may have, which the server itself reads."""

    def __init__(self, declared: Iterable[str], others: frozenset[str] = frozenset()) -> None:
        self._declared = frozenset(declared)
        self._known = self._declared | others
        self._canonical = {spelling: name for name in self._declared for spelling in name_spellings(name) - {name}}
        self._names_by_trigram: dict[str, list[str]] = {}
        self._trigrams = {name: trigrams_of(name) for name in sorted(self._declared)}
        for name, trigrams in self._trigrams.items():
            for trigram in trigrams:
                self._names_by_trigram.setdefault(trigram, []).append(name)
        # Callers send the same keys again and again.
        self._ignored_input = lru_cache(MAX_CACHED_KEYS)(self._describe_ignored)

    def knows_all(self, context: Mapping[str, Any]) -> bool:
        """Return whether every key is the name of a declared input, as it is written."""
        return self._known.issuperset(context)

    def resolve(self, context: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[IgnoredInput, ...]]:
        """Return a context with declared names for other spellings, and the keys that no guardrail knows."""
        resolved: dict[str, Any] | None = None
        ignored = []
        for key, value in context.items():
            if key in self._known or value is None:
                continue
            name = self._canonical.get(key)
            if name is None:
                ignored.append(key)
                continue
            # Copied only where it changes, since contexts often have keys that no rule knows.
            resolved = dict(context) if resolved is None else resolved
            if resolved.get(name) is None:
                resolved[name] = value
            elif resolved[name] != value or type(resolved[name]) is not type(value):
                # Fail closed: which of the two is true cannot be known.
                resolved[name] = ContradictoryInput(key, name)
        return context if resolved is None else resolved, tuple(map(self._ignored_input, sorted(ignored)[:MAX_IGNORED]))

    def find_given_key(self, context: Mapping[str, Any], name: str) -> str | None:
        """Return the key by which a context gives a declared input, or None if it does not."""
        if context.get(name) is not None:
            return name
        found = (key for key, value in context.items() if value is not None and self._canonical.get(key) == name)
        return next(found, None)

    def _describe_ignored(self, key: str) -> IgnoredInput:
        if len(key) > MAX_KEY_CHARACTERS:
            return IgnoredInput(f"{key[:MAX_KEY_CHARACTERS]}…")
        return IgnoredInput(key, self._find_closest(key))

    def _find_closest(self, key: str) -> str | None:
        """Return the declared name with the largest share of common trigrams, or None if none resembles the key."""
        trigrams = trigrams_of(key)
        similarities = [
            (2 * len(trigrams & self._trigrams[name]) / (len(trigrams) + len(self._trigrams[name])), name)
            for name in self._likely_names(trigrams)
        ]
        similarity, name = max(similarities, default=(0.0, ""))
        return name if similarity >= MIN_SIMILARITY else None

    def _likely_names(self, trigrams: Collection[str]) -> Collection[str]:
        """Return the declared names to compare with, of which there may be any number.

        Those come first that share a trigram which few names have: it tells more than a prefix that all have.
        """
        # Sorted, so that what is found does not depend on the order of a set.
        found = [self._names_by_trigram[each] for each in sorted(trigrams) if each in self._names_by_trigram]
        likely: dict[str, None] = {}
        for names in sorted(found, key=len):
            likely |= dict.fromkeys(names[: MAX_COMPARED_NAMES - len(likely)])
            if len(likely) >= MAX_COMPARED_NAMES:
                break
        return likely


def trigrams_of(name: str) -> frozenset[str]:
    """Return the groups of three characters in a name without its case and underscores."""
    text = f"  {name.replace('_', '').casefold()} "
    return frozenset(text[start : start + 3] for start in range(len(text) - 2))
