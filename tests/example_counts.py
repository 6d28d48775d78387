"""How many examples properties are tried on: some of them in `make test`, all of them in `make test-properties`."""

from __future__ import annotations

from hypothesis import settings

FULL = "full"
"""The profile of Hypothesis with all examples; `--hypothesis-profile` chooses it."""
QUICK = "quick"
SHARE = 20
"""Which part of the examples is tried where time is short: one in so many."""
MOST = 30
"""The most examples of one property where time is short."""
DEFAULT_EXAMPLES = 100


def register_profiles() -> None:
    """Make both profiles known and choose the quick one."""
    # How long an example takes says more of the machine than of the code.
    settings.register_profile(FULL, deadline=None, max_examples=DEFAULT_EXAMPLES)
    settings.register_profile(QUICK, deadline=None, max_examples=DEFAULT_EXAMPLES // SHARE)
    settings.load_profile(QUICK)


def examples(number: int, least: int = 5) -> int:
    """Return how many examples to try of a number, at least `least`, which is for those that take a second each."""
    if settings.get_current_profile_name() == FULL:
        return number
    return max(min(number // SHARE, MOST), least)
