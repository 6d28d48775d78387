"""Load rulebooks again when their files change, on a thread of its own.

Files are looked at by their stamps several times a second instead of waiting for notifications of the system: those are
not sent for network and some overlay file systems, do not follow links as Kubernetes swaps them, and are limited in
number for each user. A look costs some microseconds a file.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Final, TypeAlias

from cstp_grpc.core.guardrails import rulebook, rules_in_force
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator, UnknownInputPolicy
from cstp_grpc.core.guardrails.guardrail_compiler import find_expired_guardrails
from cstp_grpc.core.guardrails.model import RuleSet
from cstp_grpc.core.guardrails.parsing import RulebookProblem
from cstp_grpc.core.guardrails.rulebook_files import RulebookFile, list_rulebook_files
from cstp_grpc.platform.storage.background_work import PeriodicTask

logger = logging.getLogger(__name__)

LOOK_SECONDS: Final = 0.25
"""Seconds between two looks at the files. Chosen: a change is in force within a second, although files must look the
same twice, which takes up to 0.5 s, and 500 rules take 0.3 s to load."""

UNFORESEEN: Final = "cannot be loaded; the log says why"

MAX_KEPT: Final = 4
"""Maximum number of rule sets that are kept. Chosen: agents of one user work in a handful of projects."""

FileStamp: TypeAlias = tuple[int, int, int, int, int] | None
"""Device, inode, size, and times of modification and change of a file, or None without a file."""


class RuleLoader:
    """Loads the rules of a server; `server_keys` are keys of contexts that the server itself reads.

    `disabled` are packaged rulebooks by name, which are left out.
    """

    newest: ClassVar[RuleLoader | None] = None
    """The last loader whose rules this process had to load, since it had not kept them."""

    def __init__(
        self,
        path: Path,
        policy: UnknownInputPolicy,
        server_keys: frozenset[str],
        clock: Callable[[], datetime],
        disabled: Collection[str] = (),
    ) -> None:
        self.path = path
        self._disabled = frozenset(disabled)
        self.clock = clock
        self._policy = policy
        self._server_keys = server_keys

    def load(
        self, files: Sequence[RulebookFile], unreadable: Sequence[RulebookProblem] = ()
    ) -> rules_in_force.LoadedRules:
        """Load the rules in these files; `unreadable` are the problems with others. Raises RulebookError."""
        known = load_evaluator.cache_info().misses
        rule_set, evaluator = load_evaluator(
            self.path, tuple(files), tuple(unreadable), self._disabled, self._policy, self._server_keys
        )
        if load_evaluator.cache_info().misses > known:
            RuleLoader.newest = self
        now = self.clock()
        for expired in find_expired_guardrails(rule_set.guardrails, now):
            logger.warning("the guardrail %s expired at %s and does nothing", expired.id, expired.expires)
        return rules_in_force.LoadedRules(tuple(files), rule_set, evaluator, rules_in_force.RuleListing(rule_set, now))


@lru_cache(MAX_KEPT)
def load_evaluator(
    path: Path,
    files: tuple[RulebookFile, ...],
    unreadable: tuple[RulebookProblem, ...],
    disabled: frozenset[str],
    policy: UnknownInputPolicy,
    server_keys: frozenset[str],
) -> tuple[RuleSet, GuardrailEvaluator]:
    """Load the rules in files as RuleLoader does. Raises RulebookError.

    Kept by the content of the files, for the resident process of hooks: the files themselves are always read.
    """
    rule_set = rulebook.load_rule_set(path, files, unreadable, disabled)
    return rule_set, GuardrailEvaluator(rule_set, policy, server_keys)


class RulebookReloader(PeriodicTask):
    """Replaces the rules in force when the files of rulebooks change, unless the new ones are invalid."""

    def __init__(self, loader: RuleLoader, rules: rules_in_force.RulesInForce) -> None:
        self._loader = loader
        self._rules = rules
        self._extended = self._list_extended(rules.current.files)
        self._seen: Mapping[Path, FileStamp] | None = None
        self._handled: Mapping[Path, FileStamp] | None = None
        self._requested = threading.Event()
        super().__init__("rulebooks", self._look, LOOK_SECONDS, logger, "changes of rulebooks cannot be detected")

    def request_reload(self) -> None:
        """Request a read of the files soon, whether or not they seem to have changed."""
        self._requested.set()
        self.wake()

    def _look(self) -> None:
        """Load the rules if their files have changed."""
        if self._seen is None:
            # Not before the server listens, and in few cases by the first check.
            try:
                self._rules.current.evaluator.warm_up()
            except Exception:  # changes of files must be noticed all the same
                logger.exception("the first checks will be slower")
        is_requested = self._requested.is_set()
        self._requested.clear()
        stamps = self._read_stamps()
        # Files must look the same twice: one that is being written might be valid with half of its rules. Whoever asks
        # for it says that they are complete.
        if is_requested or (stamps != self._handled and stamps == self._seen):
            stamps = self._reload(is_requested=is_requested)
        self._seen = stamps

    def _reload(self, *, is_requested: bool) -> Mapping[Path, FileStamp]:
        """Read the files, load them if they are others, and return their stamps."""
        # Twice: only the content of the files names the other files whose stamps are needed.
        mentioned, _ = rulebook.read_rulebooks(self._loader.path)
        self._extended = self._list_extended(mentioned)
        before = self._read_stamps()
        found, unreadable = rulebook.read_rulebooks(self._loader.path)
        files = tuple(found)
        if self._read_stamps() != before:
            # The files may belong to two sets, as when a folder is swapped; the next look reads them again.
            return before
        self._handled = before
        former = self._rules.current
        if files == former.files and not unreadable:
            if is_requested or not self._rules.is_up_to_date():
                logger.info("the rulebooks are those in force, %s", former.listing.version)
            self._rules.keep()
            return before
        try:
            with frequent_switches():
                loaded = self._loader.load(files, unreadable)
                loaded.evaluator.warm_up()
            self._rules.replace(loaded)
        except rulebook.RulebookError as error:
            self._report_failure(error)
        except Exception:
            # Shown to callers as a failed load; the thread logs it with its traceback.
            self._report_failure(
                rulebook.RulebookError([RulebookProblem(str(self._loader.path), 1, "rulebook", UNFORESEEN)])
            )
            raise
        else:
            logger.info("the rules %s are in force instead of %s", loaded.listing.version, former.listing.version)
        return before

    def _report_failure(self, error: rulebook.RulebookError) -> None:
        version = self._rules.current.listing.version
        logger.warning("the rulebooks cannot be loaded, so %s stays in force:\n%s", version, error)
        problems = [rules_in_force.to_relative_problem(problem, self._loader.path) for problem in error.problems]
        self._rules.keep(rules_in_force.FailedLoad(self._loader.clock(), problems))

    def _list_extended(self, files: Sequence[RulebookFile]) -> frozenset[Path]:
        root = rulebook.rulebook_root(self._loader.path)
        return frozenset(path for file in files for path in rulebook.extended_paths(file, root))

    def _read_stamps(self) -> Mapping[Path, FileStamp]:
        """Return the stamps of all files that the rules come from.

        Not of folders, which change with each temporary file of an editor.
        """
        try:
            listed = list_rulebook_files(self._loader.path)
        except OSError:
            # Reported when it is read.
            listed = [self._loader.path]
        return {path: read_stamp(path) for path in (*listed, *self._extended)}


SWITCH_SECONDS: Final = sys.getswitchinterval()
"""After how long a thread gives way to others that wait for the interpreter, unless changed: 5 ms."""
FREQUENT_SWITCH_SECONDS: Final = 0.0005
"""The same while rules are loaded. A call changes threads several times, and waits so long each time. Measured with 500
rules: another thread has its turn three times as often as with 5 ms, and the load takes a sixth longer."""


@contextmanager
def frequent_switches() -> Iterator[None]:
    """In the block, switch often to other threads of this process."""
    sys.setswitchinterval(FREQUENT_SWITCH_SECONDS)
    try:
        yield
    finally:
        # Not to what it was before: another reloader of this process may be within such a block.
        sys.setswitchinterval(SWITCH_SECONDS)


def read_stamp(path: Path) -> FileStamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
