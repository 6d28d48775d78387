"""The rules by which a server judges now, and what became of the last attempt to load others."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from cstp_grpc.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.guardrails.model import RuleSet
from cstp_grpc.guardrails.rule_listing import RuleListing
from cstp_grpc.guardrails.rulebook_extension import rulebook_root
from cstp_grpc.guardrails.rulebook_files import RulebookFile, default_rulebook_path
from cstp_grpc.guardrails.rulebook_parsing import RulebookProblem


@dataclass(frozen=True, slots=True)
class LoadedRules:
    """One version of the rules, the files that it was read from, and what answers are made with."""

    files: tuple[RulebookFile, ...]
    rule_set: RuleSet
    evaluator: GuardrailEvaluator
    listing: RuleListing


@dataclass(frozen=True, slots=True)
class FailedLoad:
    """An attempt to load rules that failed; the paths in `problems` are relative to the folder of the rulebooks."""

    failed_at: datetime
    problems: Sequence[RulebookProblem]


@dataclass(frozen=True, slots=True)
class RulesState:
    """The rules in force, and the failure of the last attempt to load others; None if it succeeded."""

    loaded: LoadedRules
    failure: FailedLoad | None = None


class RulesInForce:
    """The rules by which a server judges, which are replaced as a whole. Thread-safe.

    An answer takes `state` or `current` once, so that all of it comes from one version.
    """

    def __init__(self, loaded: LoadedRules) -> None:
        # Replaced by one assignment, which is atomic: nobody sees half of it, and nobody waits for a lock.
        self.state = RulesState(loaded)
        self._followers: list[Callable[[LoadedRules], object]] = []

    @property
    def current(self) -> LoadedRules:
        """The rules in force."""
        return self.state.loaded

    def follow(self, follower: Callable[[LoadedRules], object]) -> None:
        """Call a function with the rules before they replace others, on the thread that replaces them."""
        self._followers.append(follower)

    def replace(self, loaded: LoadedRules) -> None:
        """Judge by these rules from now on. Raises what a follower raises, and then stays as it was."""
        # First those that judge, who may have to read what the rules ask for: rules that are listed do judge.
        for follower in self._followers:
            follower(loaded)
        self.state = RulesState(loaded)

    def keep(self, failure: FailedLoad | None = None) -> None:
        """Judge by the same rules, because those of the files cannot be loaded, or are the same."""
        self.state = RulesState(self.current, failure)

    def is_up_to_date(self) -> bool:
        """Return whether the rules in force are those of the files, as far as these were looked at."""
        return self.state.failure is None


def to_relative_problem(problem: RulebookProblem, path: Path) -> RulebookProblem:
    """Return a problem without the folder of the rulebooks at `path`, and without that of the packaged ones."""
    file, reason = problem.file, problem.reason
    # A problem with the folder as a whole has its name.
    file = path.name if file == str(path) else file
    for folder in (rulebook_root(path), default_rulebook_path().parent):
        # Reasons name other files, too.
        prefix = f"{folder}{os.sep}"
        file, reason = file.removeprefix(prefix), reason.replace(prefix, "")
    return replace(problem, file=file, reason=reason)
