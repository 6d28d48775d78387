"""Load rulebooks with those that they extend: all of them, or the list of all problems in them."""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.common.yaml_with_lines import YamlNode
from cstp_grpc.core.guardrails import rulebook_files
from cstp_grpc.core.guardrails.inputs import find_spelling_clashes
from cstp_grpc.core.guardrails.model import InputDeclaration, ParsedRulebook, RuleSet
from cstp_grpc.core.guardrails.parsing import InheritedParts, RulebookParseResult, RulebookProblem, parse_rulebook
from cstp_grpc.core.guardrails.rulebook_schema import EXTENSION
from cstp_grpc.core.guardrails.yaml_document import ReportProblem, YamlFields, read_document

PACKAGED_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,99}")
MAX_EXTENDED: Final = 100
"""Maximum number of files that are read because others extend them. Chosen: an organisation has a handful."""


@dataclass(frozen=True, slots=True)
class Extension:
    """A rulebook that another extends, with the values for its parameters as JSON, and the line that says so."""

    path: Path
    arguments: Mapping[str, object]
    line: int


def read_extensions(file: rulebook_files.RulebookFile, root: Path, report: ReportProblem) -> list[Extension]:
    """Return the extensions of a rulebook; `root` is the folder that no file may leave."""
    entries = find_extends_key(file.content)
    if entries is None or entries.value is None:
        return []
    if not isinstance(entries.value, list):
        report(entries.line, "extends", "must be a list of rulebooks")
        return []
    found = []
    for item in entries.value:
        node = YamlNode(item.line, {"rulebook": item}) if isinstance(item.value, str) else item
        fields = YamlFields(node, "extends", report, *EXTENSION.keys)
        arguments = {name: each.plain for name, each in fields.entries("with").items()}
        path = locate_rulebook(fields.text("rulebook"), file.path, root)
        if isinstance(path, Path):
            found.append(Extension(path, arguments, item.line))
        # One that is missing was reported already.
        elif fields.get("rulebook"):
            report(item.line, "extends", path)
    return found


# Asked several times about each file: by its readers, the loader and the reloader.
@lru_cache(MAX_EXTENDED)
def find_extends_key(content: bytes) -> YamlNode | None:
    """Return the value of `extends` in a rulebook, which is not to be changed; None without one."""
    # Most rulebooks extend none, and need not be parsed to know it. A key in quotes may be written with escapes.
    may_extend = b"extends" in content or b"\\" in content
    # Problems of the document are reported where it is parsed as a rulebook.
    document = read_document(content, ignore_problem) if may_extend else None
    return document.value.get("extends") if document and isinstance(document.value, dict) else None


def extended_paths(file: rulebook_files.RulebookFile, root: Path) -> set[Path]:
    """Return the paths of the rulebooks that a file extends; the loader reports faults."""
    return {extension.path for extension in read_extensions(file, root, ignore_problem)}


def locate_rulebook(name: str, file: Path, root: Path) -> Path | str:
    """Return the path of the rulebook that a file names, or the reason why it is invalid."""
    if PACKAGED_NAME.fullmatch(name):
        path = rulebook_files.packaged_rulebook_path(name)
        return path if path.exists() else f"there is no packaged rulebook {name}; a file ends in .yaml or .yml"
    path = Path(os.path.normpath(file.parent / name))
    if path.suffix.lower() not in rulebook_files.RULEBOOK_SUFFIXES or path.name.startswith("."):
        return f"{name} is not a rulebook: its name must end in .yaml or .yml"
    # Links are followed for the second comparison: they could lead out of the folder, too.
    if not path.is_relative_to(root) or not path.resolve().is_relative_to(root.resolve()):
        return f"{name} is outside of the folder of the rulebooks"
    return path


def rulebook_root(path: Path) -> Path:
    return Path(os.path.normpath(path if path.is_dir() else path.parent))


def collect_rulebook_files(
    path: Path, report: Callable[[Path, OSError], None], *, accepts_pipe: bool = False
) -> Sequence[rulebook_files.RulebookFile]:
    """Read a rulebook or a folder of them, with the files that they extend; `path` may be a pipe if `accepts_pipe`.

    Files that are missing or invalid are left out, for the loader to report; `report` takes a file that cannot be
    read, and why. Raises OSError if the folder cannot be read.
    """
    files: dict[Path, rulebook_files.RulebookFile] = {}
    # The files of the folder come first, so that none of them is left out, however many rulebooks they extend.
    pending = deque(normalize_path(file) for file in rulebook_files.list_rulebook_files(path))
    pipe = normalize_path(path) if accepts_pipe else None
    most = len(pending) + MAX_EXTENDED
    while pending and len(files) < most:
        name = pending.popleft()
        try:
            files[name] = rulebook_files.read_rulebook_file(name, accepts_pipe=name == pipe)
        except OSError as error:
            report(name, error)
            continue
        targets = extended_paths(files[name], rulebook_root(path))
        pending += [target for target in sorted(targets - files.keys() - set(pending)) if target.is_file()]
    return list(files.values())


def add_packaged_rulebooks(
    files: Sequence[rulebook_files.RulebookFile], root: Path
) -> Sequence[rulebook_files.RulebookFile]:
    """Return rulebooks that are not on disk, with the packaged ones that they extend, directly or by others."""
    found = {file.path: file for file in files}
    pending = deque(files)
    while pending and len(found) < len(files) + MAX_EXTENDED:
        for target in sorted(extended_paths(pending.popleft(), root) - found.keys()):
            # Nothing else is read: whoever sent the files may not read those of the server.
            if target == rulebook_files.packaged_rulebook_path(target.stem):
                found[target] = rulebook_files.read_rulebook_file(target)
                pending.append(found[target])
    return list(found.values())


def ignore_problem(line: int, *reasons: str) -> None:
    """Report nothing: the loader reads the same again and reports its problems."""


def normalize_path(path: Path) -> Path:
    """Return a path without detours, as the names of extended files are."""
    return Path(os.path.normpath(path))


class RulebookError(Exception):
    """Rulebooks are invalid; `problems` lists every problem, and the message has a line for each."""

    def __init__(self, problems: Iterable[RulebookProblem]) -> None:
        self.problems: Sequence[RulebookProblem] = sorted(set(problems))
        super().__init__("\n".join(map(str, self.problems)))


def load_rule_set(
    path: Path,
    files: Sequence[rulebook_files.RulebookFile] | None = None,
    unreadable: Sequence[RulebookProblem] = (),
    disabled: Collection[str] = (),
) -> RuleSet:
    """Load a rulebook, or every *.yaml and *.yml in a folder in name order, with the rulebooks that they extend.

    Hidden files and subfolders are skipped, and a rulebook of the folder that others extend is loaded with them. If
    `files` is given, it is used instead of reading the folder, and `unreadable` are the problems with the others.
    `disabled` are packaged rulebooks by name, not to be loaded. Raises RulebookError if any rulebook is invalid.
    """
    if files is None:
        files, unreadable = read_rulebooks(path, accepts_pipe=True)
    if not files and not unreadable:
        raise RulebookError([RulebookProblem(str(path), 1, "rulebook", "the folder contains no *.yaml or *.yml")])
    for name in disabled:
        if not rulebook_files.packaged_rulebook_path(name).exists():
            unreadable = [*unreadable, RulebookProblem(str(path), 1, "disabled_packs", f"there is no pack {name}")]
    return RuleSet(tuple(RulebookLoader(path, files, unreadable, disabled).load()))


def read_rulebooks(
    path: Path, *, accepts_pipe: bool = False
) -> tuple[Sequence[rulebook_files.RulebookFile], Sequence[RulebookProblem]]:
    """Read a rulebook or a folder with the rulebooks that they extend; return the files, and problems with others.

    `path` may be a pipe if `accepts_pipe`, which is for those who read it once.
    """
    problems: list[RulebookProblem] = []

    def report(file: Path, error: OSError) -> None:
        problems.append(RulebookProblem(str(file), 1, "rulebook", f"cannot be read: {error.strerror}"))

    try:
        return collect_rulebook_files(path, report, accepts_pipe=accepts_pipe), problems
    except OSError as error:
        report(path, error)
        return (), problems


@dataclass(frozen=True, slots=True)
class LoadedRulebook:
    """A rulebook with the arguments that it was loaded with, after those that it extends."""

    file: Path
    arguments: Mapping[str, object]
    parsed: RulebookParseResult
    extended: tuple[LoadedRulebook, ...]


class RulebookLoader:
    """Loads rulebooks, each after those that it extends, and each once; `problems` are known beforehand."""

    def __init__(
        self,
        path: Path,
        files: Sequence[rulebook_files.RulebookFile],
        problems: Sequence[RulebookProblem],
        disabled: Collection[str] = (),
    ) -> None:
        self._disabled = {rulebook_files.packaged_rulebook_path(name) for name in disabled}
        self._root = rulebook_root(path)
        self._files = {normalize_path(file.path): file for file in files}
        # A folder's own files, or the only one; others are there because they are extended.
        self._named = [file for file in self._files if normalize_path(path) in (file, file.parent)]
        self._loaded: dict[Path, LoadedRulebook] = {}
        self._problems = list(problems)
        self._extensions = {file: self._read_extensions(file) for file in self._files}

    def load(self) -> Sequence[ParsedRulebook]:
        """Return the rulebooks in the order in which violations are reported. Raises RulebookError."""
        extended = {each.path for found in self._extensions.values() for each in found}
        # Files that no other extends; then, for cycles, files that were not reached from them.
        for file in (*(file for file in self._named if file not in extended), *self._named):
            if file not in self._loaded:
                self._load(file, {}, ())
        loaded = list(self._loaded.values())
        problems = self._problems + [problem for one in loaded for problem in one.parsed.problems]
        # A verdict names a guardrail by its id alone, and a call has one context for the inputs of all files.
        problems += find_id_clashes(loaded)
        problems += find_input_clashes(loaded)
        if problems:
            raise RulebookError(problems)
        return [one.parsed.rulebook for one in loaded if one.parsed.rulebook]

    def _load(self, file: Path, arguments: Mapping[str, object], chain: tuple[Path, ...]) -> LoadedRulebook:
        """Load a rulebook after the rulebooks that it extends; `chain` are the files that led to it."""
        bases: dict[Path, LoadedRulebook] = {}
        for extension in self._extensions[file]:
            base = self._load_base(extension, file, (*chain, file))
            if base is not None:
                bases |= {each.file: each for each in (*base.extended, base)}
        inherited = InheritedParts(
            {name: each for base in bases.values() for name, each in base.parsed.inputs.items()},
            frozenset(identifier for base in bases.values() for identifier in base.parsed.ids),
            tuple(base.parsed.rulebook for base in bases.values() if base.parsed.rulebook),
        )
        parsed = parse_rulebook(str(file), self._files[file].content, arguments, inherited)
        loaded = LoadedRulebook(file, arguments, parsed, tuple(bases.values()))
        self._loaded[file] = loaded
        return loaded

    def _load_base(self, extension: Extension, file: Path, chain: tuple[Path, ...]) -> LoadedRulebook | None:
        """Load the rulebooks that a file extends, or report why that is impossible."""
        known = self._loaded.get(extension.path)
        if extension.path in chain:
            reason = f"{extension.path.name} extends this rulebook itself, directly or by others"
        elif extension.path not in self._files:
            reason = f"{extension.path.name} does not exist, or too many rulebooks are extended"
        elif known is not None and not is_same_json(known.arguments, extension.arguments):
            # Its guardrails would be there twice, under the same ids.
            reason = f"{extension.path.name} is extended already, with other values for its parameters"
        else:
            return known or self._load(extension.path, extension.arguments, chain)
        self._problems.append(RulebookProblem(str(file), extension.line, "extends", reason))
        return None

    def _read_extensions(self, file: Path) -> Sequence[Extension]:
        """Return the extensions of a file, and report the problems with them."""

        def report(line: int, where: str, reason: str) -> None:
            self._problems.append(RulebookProblem(str(file), line, where, reason))

        found = read_extensions(rulebook_files.RulebookFile(file, self._files[file].content), self._root, report)
        return [each for each in found if each.path not in self._disabled]


def is_same_json(one: object, other: object) -> bool:
    """Return whether two JSON values are the same; as text, because Python considers 1 and True equal."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def find_id_clashes(loaded: Sequence[LoadedRulebook]) -> Iterator[RulebookProblem]:
    """Yield a problem for each guardrail id that another file has already."""
    seen: dict[str, str] = {}
    for one in loaded:
        for identifier, line in one.parsed.ids.items():
            if identifier in seen:
                yield RulebookProblem(str(one.file), line, identifier, f"the id is used already, in {seen[identifier]}")
            else:
                seen[identifier] = f"{one.file}:{line}"


def find_input_clashes(loaded: Sequence[LoadedRulebook]) -> Iterator[RulebookProblem]:
    seen: dict[str, tuple[Path, InputDeclaration]] = {}
    for one in loaded:
        for name, declared in one.parsed.inputs.items():
            first_file, first = seen.setdefault(name, (one.file, declared))
            if input_signature(first) != input_signature(declared):
                reason = (
                    f"differs from its declaration in {first_file}:{first.line} in type, default, required or values"
                )
                yield RulebookProblem(str(one.file), declared.line, f"inputs.{name}", reason)
    for name, other in find_spelling_clashes(seen):
        file, declared = seen[name]
        first_file, first = seen[other]
        reason = f"is the same name as {other} in {first_file}:{first.line}: snake case and camel case are equal"
        yield RulebookProblem(str(file), declared.line, f"inputs.{name}", reason)


def input_signature(declared: InputDeclaration) -> tuple[str, str]:
    """Return the signature that declarations of an input share, in JSON, since Python considers 1 and True equal."""
    return declared.type, json.dumps([declared.default, declared.is_required, declared.values], sort_keys=True)
