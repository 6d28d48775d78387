"""Loading rulebooks, all of them or none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from cstp_grpc.guardrails.document import MAX_BYTES
from cstp_grpc.guardrails.parsing import Parsed, Problem, parse
from cstp_grpc.guardrails.ruleset import Guardrail, Input, Rulebook, RuleSet

__all__ = ["Guardrail", "Input", "Problem", "RuleSet", "Rulebook", "RulebookError", "default_rulebook", "load"]

SUFFIXES = (".yaml", ".yml")


class RulebookError(Exception):
    """Rulebooks cannot be used; `problems` is everything that is wrong, and the message has a line for each."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems: Sequence[Problem] = sorted(problems)
        super().__init__("\n".join(map(str, self.problems)))


def load(path: Path) -> RuleSet:
    """Return the rules of a rulebook, or of every *.yaml and *.yml in a folder, in the order of their names.

    Hidden files and folders within the folder are passed over. Raises RulebookError.
    """
    files = list_files(path)
    if not files:
        raise RulebookError([Problem(str(path), 1, "rulebook", "the folder holds no *.yaml or *.yml")])
    parsed = [read(file) for file in files]
    problems = [problem for one in parsed for problem in one.problems]
    problems += clashing_ids(files, parsed)
    problems += clashing_inputs(files, parsed)
    if problems:
        raise RulebookError(problems)
    return RuleSet(tuple(one.rulebook for one in parsed if one.rulebook))


def default_rulebook() -> Path:
    """Return the rulebook that comes with the package, in an installation as in a checkout."""
    installed = Path(__file__).with_name("default.yaml")
    return installed if installed.exists() else Path(__file__).parents[2] / "guardrails" / "default.yaml"


def list_files(path: Path) -> list[Path]:
    """Return the files to read, by name. Raises RulebookError."""
    if not path.is_dir():
        return [path]
    try:
        found = sorted(path.iterdir())
    except OSError as error:
        raise RulebookError([Problem(str(path), 1, "rulebook", f"cannot be read: {error.strerror}")]) from error
    return [file for file in found if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")]


def read(file: Path) -> Parsed:
    """Return what is in a file."""
    try:
        with file.open("rb") as stream:
            content = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return Parsed(problems=[Problem(str(file), 1, "rulebook", f"cannot be read: {error.strerror}")])
    return parse(str(file), content)


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
