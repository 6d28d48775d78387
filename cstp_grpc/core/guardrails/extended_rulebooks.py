"""Rulebooks that extend others: which files they name, and the values that they give to parameters."""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cstp_grpc.common.yaml_with_lines import YamlNode
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.guardrails.cel_engine import ParameterValue
from cstp_grpc.core.guardrails.inputs import CONVERTERS, InputType, InputValueError, check_context_bounds
from cstp_grpc.core.guardrails.rulebook_files import (
    RULEBOOK_SUFFIXES,
    RulebookFile,
    list_rulebook_files,
    packaged_rulebook_path,
    read_rulebook_file,
)
from cstp_grpc.core.guardrails.rulebook_schema import EXTENSION, INPUT_NAME_PATTERN, PARAMETER, PARAMETER_TYPES
from cstp_grpc.core.guardrails.section_parsing import invalid_value_reason
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


def read_extensions(document: YamlNode, file: Path, root: Path, report: ReportProblem) -> list[Extension]:
    """Return the extensions of a rulebook; `root` is the folder that no file may leave."""
    found = []
    entries = document.value.get("extends") if isinstance(document.value, dict) else None
    if entries is None or entries.value is None:
        return []
    if not isinstance(entries.value, list):
        report(entries.line, "extends", "must be a list of rulebooks")
        return []
    for item in entries.value:
        node = YamlNode(item.line, {"rulebook": item}) if isinstance(item.value, str) else item
        fields = YamlFields(node, "extends", report, *EXTENSION.keys)
        arguments = {name: each.plain for name, each in fields.entries("with").items()}
        path = locate_rulebook(fields.text("rulebook"), file, root)
        if isinstance(path, Path):
            found.append(Extension(path, arguments, item.line))
        # One that is missing was reported already.
        elif fields.get("rulebook"):
            report(item.line, "extends", path)
    return found


def locate_rulebook(name: str, file: Path, root: Path) -> Path | str:
    """Return the path of the rulebook that a file names, or the reason why it is invalid."""
    if PACKAGED_NAME.fullmatch(name):
        path = packaged_rulebook_path(name)
        return path if path.exists() else f"there is no packaged rulebook {name}; a file ends in .yaml or .yml"
    path = Path(os.path.normpath(file.parent / name))
    if path.suffix.lower() not in RULEBOOK_SUFFIXES or path.name.startswith("."):
        return f"{name} is not a rulebook: its name must end in .yaml or .yml"
    # Links are followed for the second comparison: they could lead out of the folder, too.
    if not path.is_relative_to(root) or not path.resolve().is_relative_to(root.resolve()):
        return f"{name} is outside of the folder of the rulebooks"
    return path


def rulebook_root(path: Path) -> Path:
    return Path(os.path.normpath(path if path.is_dir() else path.parent))


ReportUnreadable = Callable[[Path, OSError], None]
"""Takes a file that cannot be read, and why."""


def raise_unreadable(path: Path, error: OSError) -> None:  # noqa: ARG001 - the error names the file
    raise error


def collect_rulebook_files(
    path: Path, report: ReportUnreadable = raise_unreadable, *, accepts_pipe: bool = False
) -> Sequence[RulebookFile]:
    """Read a rulebook or a folder of them, with the files that they extend; `path` may be a pipe if `accepts_pipe`.

    Files that are missing or invalid are left out, for the loader to report. Raises OSError if the folder cannot be
    read, or a file and `report` raises it.
    """
    files: dict[Path, RulebookFile] = {}
    # The files of the folder come first, so that none of them is left out, however many rulebooks they extend.
    pending = deque(normalize_path(file) for file in list_rulebook_files(path))
    pipe = normalize_path(path) if accepts_pipe else None
    most = len(pending) + MAX_EXTENDED
    while pending and len(files) < most:
        name = pending.popleft()
        try:
            files[name] = read_rulebook_file(name, accepts_pipe=name == pipe)
        except OSError as error:
            report(name, error)
            continue
        targets = set(extended_paths(files[name], rulebook_root(path)))
        pending += [target for target in sorted(targets - files.keys() - set(pending)) if target.is_file()]
    return list(files.values())


def extended_paths(file: RulebookFile, root: Path) -> Iterator[Path]:
    """Yield the paths of the rulebooks that a file extends; the loader reports faults."""
    if may_extend(file.content):
        document = read_document(file.content, ignore_problem)
        if document is not None:
            for extension in read_extensions(document, file.path, root, ignore_problem):
                yield extension.path


def may_extend(content: bytes) -> bool:
    """Return whether a rulebook may extend others; most do not, and need not be parsed to know it."""
    # A key in quotes may be written with escapes.
    return b"extends" in content or b"\\" in content


def ignore_problem(line: int, *reasons: str) -> None:
    """Report nothing: the parser reads the same again and reports its problems."""


def normalize_path(path: Path) -> Path:
    """Return a path without detours, as the names of extended files are."""
    return Path(os.path.normpath(path))


def read_parameters(
    fields: YamlFields, arguments: Mapping[str, object], report: ReportProblem
) -> Mapping[str, ParameterValue]:
    """Return the parameters that a rulebook declares, with the given values or their defaults."""
    node = fields.get("parameters")
    declared = fields.entries("parameters", "parameters")
    parameters = {}
    for name, item in declared.items():
        where = f"parameters.{name}"
        if not INPUT_NAME_PATTERN.fullmatch(name):
            report(item.line, where, "is not a name that an expression can read")
            continue
        declaration = YamlFields(item, where, report, *PARAMETER.keys)
        kind = declaration.enum_word("type", InputType)
        if kind not in PARAMETER_TYPES:
            declaration.report_problem(f"`type` must be one of {', '.join(PARAMETER_TYPES)}", "type")
            continue
        # Nobody reads it yet; it is checked like every text.
        declaration.optional_text("description")
        value = arguments.get(name, declaration.plain("default"))
        if value is None:
            report(item.line, where, "has no default, and no rulebook that extends this one gives it a value")
            continue
        try:
            check_context_bounds({name: value})
            parameters[name] = ParameterValue(kind, convert_parameter(kind, value))
        except (InputValueError, InvalidArgument) as error:
            report(item.line, where, f"the value {invalid_value_reason(error)}")
    for name in sorted(arguments.keys() - declared.keys()):
        line = node.line if node else fields.line
        report(line, "parameters", f"{name} is missing, but a rulebook that extends this one gives it a value")
    return parameters


def convert_parameter(kind: InputType, value: object) -> object:
    converted = CONVERTERS[kind](value)
    if isinstance(converted, list) and not all(isinstance(item, bool | float | str) for item in converted):
        raise InputValueError("must be a list of texts, numbers or bools")
    return converted
