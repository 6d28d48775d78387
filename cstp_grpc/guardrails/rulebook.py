"""Loading rulebooks, all of them or none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cstp_grpc.guardrails.parsing import Parsed, Problem, parse
from cstp_grpc.guardrails.rulebook_files import RulebookFile, default_rulebook, list_files, read_file
from cstp_grpc.guardrails.ruleset import Guardrail, Input, Rulebook, RuleSet

__all__ = ["Guardrail", "Input", "Problem", "RuleSet", "Rulebook", "RulebookError", "default_rulebook", "load"]


class RulebookError(Exception):
    """Rulebooks cannot be used; `problems` is everything that is wrong, and the message has a line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = sorted(problems)
        super().__init__("\n".join(map(str, self.problems)))


def load(path: Path, files: Sequence[RulebookFile] | None = None) -> RuleSet:
    """Return the rules of a rulebook, or of every *.yaml and *.yml in a folder, in the order of their names.

    Hidden files and folders within the folder are passed over. `files` is what was read there before, and nothing is
    read then. Raises RulebookError.
    """
    found = find_files(path) if files is None else files
    if not found:
        raise RulebookError([Problem(str(path), 1, "rulebook", "the folder holds no *.yaml or *.yml")])
    parsed = [parse_file(file) for file in found]
    paths = [file if isinstance(file, Path) else file.path for file in found]
    problems = [problem for one in parsed for problem in one.problems]
    problems += clashing_ids(paths, parsed)
    problems += clashing_inputs(paths, parsed)
    if problems:
        raise RulebookError(problems)
    return RuleSet(tuple(one.rulebook for one in parsed if one.rulebook))


def find_files(path: Path) -> list[Path]:
    """Return the files to read, by name. Raises RulebookError."""
    try:
        return list_files(path)
    except OSError as error:
        raise RulebookError([Problem(str(path), 1, "rulebook", f"cannot be read: {error.strerror}")]) from error


def parse_file(file: Path | RulebookFile) -> Parsed:
    """Return what is in a file, which is read if only its path is given."""
    try:
        found = read_file(file) if isinstance(file, Path) else file
    except OSError as error:
        return Parsed(problems=[Problem(str(file), 1, "rulebook", f"cannot be read: {error.strerror}")])
    return parse(str(found.path), found.content)


def clashing_ids(files: Sequence[Path], parsed: Sequence[Parsed]) -> Iterator[Problem]:
    """Return the guardrails whose identifier another file has already."""
    seen: dict[str, str] = {}
    for file, one in zip(files, parsed, strict=True):
        for identifier, line in one.ids.items():
            if identifier in seen:
                yield Problem(str(file), line, identifier, f"the id is used already, in {seen[identifier]}")
            else:
                seen[identifier] = f"{file}:{line}"


def clashing_inputs(files: Sequence[Path], parsed: Sequence[Parsed]) -> Iterator[Problem]:
    """Return the inputs that another file has declared otherwise."""
    seen: dict[str, tuple[Path, Input]] = {}
    for file, one in zip(files, parsed, strict=True):
        for name, declared in one.inputs.items():
            first_file, first = seen.setdefault(name, (file, declared))
            if meaning(first) != meaning(declared):
                reason = f"differs from its declaration in {first_file}:{first.line} in type or default"
                yield Problem(str(file), declared.line, f"inputs.{name}", reason)


def meaning(declared: Input) -> tuple[str, str]:
    """Return what an input is to rules; unlike values, texts do not hold 1 and true to be equal."""
    return declared.type, json.dumps(declared.default, sort_keys=True)
