"""The skeleton of a new node: a description of its folder, and comments that ask for the rest."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote

from cstp_grpc.common.unicode_text import to_printable_line
from cstp_grpc.contract.errors import Conflict, InvalidArgument, NotFound
from cstp_grpc.modules.intent_layer import durable_files, folder_overview
from cstp_grpc.modules.intent_layer.learning_merge import new_node_file
from cstp_grpc.modules.intent_layer.model import ROOT, NodeSkeleton
from cstp_grpc.modules.intent_layer.project_files import join_path, name_of
from cstp_grpc.modules.intent_layer.project_tree import NODE_FILES, ProjectTree

PURPOSE_CHARACTERS = 600
LIST_CHARACTERS = 2_400
"""Maximum characters of a list. Chosen: all lists together stay within the target size of a node."""

INTRODUCTION = (
    "A skeleton, made from the files in this folder. Add to its sections what the code does not show, and remove the "
    "comments. A node should have at most 3 000 tokens."
)
PURPOSE = "The responsibilities of this folder, and their limits."
ENTRY_POINTS = "The file to open for a task: one row for each recurring task."
CONTRACTS = "The invariants that no type or test enforces. Only people who know the code can list them."
PITFALLS = "Surprises: the trap, and the way to avoid it."
CHECKS = "The checks before a change is done."
BOUNDARIES = "Actions that are always allowed, that need approval first, and that are forbidden."
PUBLIC_API = "The interfaces that other code relies on, and how it uses them."
DOWNLINKS = "The subject of each of these nodes."

SPECIAL_CHARACTERS = re.compile(r"[\\`*\[\]<]")
LEADING_MARKUP = re.compile(r"(?=[-+=#>~:|_&])|(?<=\d)(?=[.)])")
WHITESPACE = re.compile(r"\s+")


def node_skeleton(tree: ProjectTree, folder: str) -> NodeSkeleton:
    """Return a skeleton of the node of a folder, and write nothing.

    It has the required sections; those that only people can fill in are empty. Raises NotFound if the folder is
    missing, Conflict if it has a node, InvalidArgument if no node may be there, Unavailable if it cannot be read.
    """
    return _build_skeleton(tree, _require_node_folder(tree, folder))


def create_node(tree: ProjectTree, folder: str, before: Callable[[], None] = lambda: None) -> NodeSkeleton:
    """Write the skeleton to a new file, which is on disk when this returns.

    Raises as `node_skeleton` does. No file is ever overwritten: of several concurrent calls one wins, and the others
    get Conflict. `before` is called when only the writing remains; an exception from it prevents the writing.
    """
    target = _require_node_folder(tree, folder)
    skeleton = _build_skeleton(tree, target)
    name = name_of(skeleton.file)
    with durable_files.open_folder(tree, target) as descriptor:
        if descriptor is None:
            raise NotFound(f"there is no folder {to_printable_line(target)}")
        # After every check and before the file: the record of the attempt is on disk before its effect.
        before()
        # A name of its own for each call: two callers must not write the same temporary file.
        temporary = f".{name}.{secrets.token_hex(8)}.tmp"
        if not durable_files.create_file(descriptor, name, skeleton.content.encode(), temporary):
            raise _node_exists_error(skeleton.file)
    return skeleton


def _require_node_folder(tree: ProjectTree, folder: str) -> str:
    target = tree.locate(folder)
    if not tree.exists(target) and target != ROOT:
        raise NotFound(f"there is no folder {to_printable_line(target)}")
    if not tree.is_folder(target):
        raise InvalidArgument.field("path", "is no folder")
    # A node there would never be read.
    if tree.ignored_folders().skips_path(target):
        raise InvalidArgument.field("path", "lies in a folder whose nodes are ignored")
    return target


def _build_skeleton(tree: ProjectTree, folder: str) -> NodeSkeleton:
    for name in NODE_FILES:
        # `exists` counts a dangling link too, which create_file would refuse as well.
        if tree.exists(join_path(folder, name)):
            raise _node_exists_error(join_path(folder, name))
    overview = folder_overview.inspect_folder(tree, folder)
    name = tree.root.name if folder == ROOT else name_of(folder)
    title = _escape_title(overview.readme.title or name or "The project")
    return NodeSkeleton(
        new_node_file(folder),
        "\n\n".join([f"# {title}", _to_html_comment(INTRODUCTION), *_iter_blocks(overview)]) + "\n",
    )


def _node_exists_error(file: str) -> Conflict:
    return Conflict(f"there is {to_printable_line(file)} already")


def _iter_blocks(overview: folder_overview.FolderOverview) -> Iterator[str]:
    yield from _render_section(
        "Purpose", [_render_purpose(overview.readme.paragraph), _render_topics(overview.readme.headings)], PURPOSE
    )
    yield from _render_section("Entry Points", [_entry_point_table(overview.entry_points)], ENTRY_POINTS)
    yield from _render_section("Contracts", [], CONTRACTS)
    yield from _render_section("Pitfalls", [], PITFALLS)
    yield from _render_section("Checks", [_check_lines(overview)], CHECKS)
    yield from _render_section("Boundaries", [], BOUNDARIES)
    if overview.exports:
        exports = (f"- `{each.file}`: {', '.join(f'`{name}`' for name in each.names)}" for each in overview.exports)
        yield from _render_section("Public API", [_join_list(exports)], PUBLIC_API)
    if overview.children:
        yield from _render_section(
            "Downlinks", [_join_list(_downlink_line(*child) for child in overview.children)], DOWNLINKS
        )


def _render_section(name: str, texts: Iterable[str], comment: str) -> Iterator[str]:
    yield f"## {name}"
    yield from filter(None, texts)
    yield _to_html_comment(comment)


def _to_html_comment(text: str) -> str:
    return f"<!-- {text} -->"


def _render_purpose(words: Iterable[folder_overview.ReadmeText]) -> str:
    """Return the beginning of a paragraph as one line."""
    pieces: list[str] = []
    remaining = PURPOSE_CHARACTERS
    for word in words:
        text = _to_single_line(word.text)
        if len(text) > remaining:
            pieces.append(f"{_escape_inline(text[:remaining].rstrip(), word.code)} …")
            break
        pieces.append(_escape_inline(text, word.code))
        remaining -= len(text)
    return _escape_line_start("".join(pieces).strip())


def _render_topics(headings: Iterable[str]) -> str:
    named = ", ".join(_escape_inline(heading[:100], code=False) for heading in map(_to_single_line, headings))
    return f"Its README is about: {named}." if named else ""


def _to_single_line(text: str) -> str:
    """Return a text on one line, with spaces for line ends."""
    return to_printable_line(WHITESPACE.sub(" ", text))


def _escape_inline(text: str, code: bool) -> str:
    if code and text.strip():
        return f"`{text.replace('`', ' ').strip()}`"
    return SPECIAL_CHARACTERS.sub(r"\\\g<0>", text)


def _escape_title(text: str) -> str:
    return _escape_line_start(_escape_inline(_to_single_line(text)[:200].strip(), code=False))


def _escape_line_start(text: str) -> str:
    """Return a line escaped so that it begins no list, quotation, heading or thematic break."""
    return LEADING_MARKUP.sub(r"\\", text, count=1) if re.match(r"[-+=#>~:|_&]|\d+[.)]", text) else text


def _entry_point_table(entry_points: Iterable[folder_overview.EntryPoint]) -> str:
    rows = _lines_that_fit(f"| {_task_cell(each)} | `{each.file}` |" for each in entry_points)
    return "\n".join(["| task | file |", "|---|---|", *rows]) if rows else ""


def _task_cell(entry_point: folder_overview.EntryPoint) -> str:
    return " ".join(filter(None, [entry_point.task, ", ".join(f"`{each}`" for each in entry_point.commands)]))


def _check_lines(overview: folder_overview.FolderOverview) -> str:
    commands = [f"- [ ] `{command}` passes." for command in overview.checks]
    return "\n".join(commands or ([f"- [ ] The tests in `{overview.tests}/` pass."] if overview.tests else []))


def _downlink_line(folder: str, file: str) -> str:
    return f"- [{_escape_inline(_to_single_line(folder), code=False)}]({quote(file)})"


def _join_list(lines: Iterable[str]) -> str:
    return "\n".join(_lines_that_fit(lines))


def _lines_that_fit(lines: Iterable[str]) -> list[str]:
    kept: list[str] = []
    remaining = LIST_CHARACTERS
    for line in lines:
        remaining -= len(line) + 1
        if remaining < 0:
            break
        kept.append(line)
    return kept
