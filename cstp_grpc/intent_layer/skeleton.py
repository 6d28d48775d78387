"""A node to begin with: what can be seen in its folder, and comments that say what only people know."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote

from cstp_grpc.errors import Conflict, InvalidArgument, NotFound
from cstp_grpc.intent_layer import durable
from cstp_grpc.intent_layer.model import ROOT, Skeleton
from cstp_grpc.intent_layer.paths import joined, name_of
from cstp_grpc.intent_layer.placement import new_file
from cstp_grpc.intent_layer.rules import printable
from cstp_grpc.intent_layer.surroundings import EntryPoint, Exports, Surroundings, Words, look_around
from cstp_grpc.intent_layer.tree import NODE_FILES, SKIPPED, Tree

PURPOSE_CHARACTERS = 600
LIST_CHARACTERS = 2_400
"""How long a list may be; all of them together stay within what a node should have."""

INTRODUCTION = (
    "A skeleton, made from what can be seen in this folder. Say in its sections what the code does not, and remove the "
    "comments. A node should have at most 3 000 tokens."
)
PURPOSE = "What this folder owns, and what it does not."
ENTRY_POINTS = "Which file to open for which task: one row for each task that comes up again and again."
CONTRACTS = "What must hold and no type or test enforces. Only people who know the code can say it."
PITFALLS = "What has surprised somebody: what happens, and what to do instead."
CHECKS = "What to verify before a change counts as done."
BOUNDARIES = "What may always be done, what is to be asked for first, and what must never be done."
PUBLIC_API = "Of what is offered to others: which of it they rely on, and how."
DOWNLINKS = "What each of these nodes is about."

SPECIAL = re.compile(r"[\\`*\[\]<]")
LEADING = re.compile(r"(?=[-+=#>~:|_&])|(?<=\d)(?=[.)])")
SPACE = re.compile(r"\s+")


def skeleton(tree: Tree, folder: str) -> Skeleton:
    """Return a skeleton of the node of a folder, and write nothing.

    The required sections are there; what only people can fill in is empty. Raises NotFound where there is no folder,
    Conflict where it has a node, InvalidArgument where no node may be, Unavailable where it cannot be read.
    """
    return _skeleton(tree, _target(tree, folder))


def create(tree: Tree, folder: str, before: Callable[[], None] = lambda: None) -> Skeleton:
    """Write what `skeleton` returns to a new file, which is on disk when this returns. Raises as `skeleton` does.

    Nothing is ever overwritten: of several at once, one wins, and the others get Conflict. `before` is called when only
    the writing is left; what it raises keeps that from happening.
    """
    target = _target(tree, folder)
    made = _skeleton(tree, target)
    name = name_of(made.file)
    with durable.opened(tree, target) as descriptor:
        if descriptor is None:
            raise NotFound(f"there is no folder {printable(target)}")
        before()
        temporary = f".{name}.{secrets.token_hex(8)}.tmp"
        if not durable.create(descriptor, name, made.content.encode(), temporary):
            raise _taken(made.file)
    return made


def _target(tree: Tree, folder: str) -> str:
    target = tree.locate(folder)
    if not tree.exists(target) and target != ROOT:
        raise NotFound(f"there is no folder {printable(target)}")
    if not tree.is_folder(target):
        raise InvalidArgument.field("path", "is no folder")
    if not SKIPPED.isdisjoint(target.split("/")):
        raise InvalidArgument.field("path", "lies in a folder whose nodes are not looked at")
    return target


def _skeleton(tree: Tree, folder: str) -> Skeleton:
    for name in NODE_FILES:
        if tree.exists(joined(folder, name)):
            raise _taken(joined(folder, name))
    seen = look_around(tree, folder)
    name = tree.root.name if folder == ROOT else name_of(folder)
    title = _escaped(seen.readme.title or name or "The project")
    return Skeleton(new_file(folder), "\n\n".join([f"# {title}", _comment(INTRODUCTION), *_blocks(seen)]) + "\n")


def _taken(file: str) -> Conflict:
    return Conflict(f"there is {printable(file)} already")


def _blocks(seen: Surroundings) -> Iterator[str]:
    yield from _section("Purpose", [_purpose(seen.readme.paragraph), _topics(seen.readme.headings)], PURPOSE)
    yield from _section("Entry Points", [_table(seen.entry_points)], ENTRY_POINTS)
    yield from _section("Contracts", [], CONTRACTS)
    yield from _section("Pitfalls", [], PITFALLS)
    yield from _section("Checks", [_checks(seen)], CHECKS)
    yield from _section("Boundaries", [], BOUNDARIES)
    if seen.exports:
        yield from _section("Public API", [_list(map(_exports, seen.exports))], PUBLIC_API)
    if seen.children:
        yield from _section("Downlinks", [_list(_downlink(*child) for child in seen.children)], DOWNLINKS)


def _section(name: str, texts: Iterable[str], comment: str) -> Iterator[str]:
    yield f"## {name}"
    yield from filter(None, texts)
    yield _comment(comment)


def _comment(text: str) -> str:
    return f"<!-- {text} -->"


def _purpose(words: Iterable[Words]) -> str:
    """Return the beginning of a paragraph as one line."""
    pieces: list[str] = []
    left = PURPOSE_CHARACTERS
    for word in words:
        text = _one_line(word.text)
        if len(text) > left:
            pieces.append(f"{_inline(text[:left].rstrip(), word.code)} …")
            break
        pieces.append(_inline(text, word.code))
        left -= len(text)
    return _at_line_start("".join(pieces).strip())


def _topics(headings: Iterable[str]) -> str:
    named = ", ".join(_inline(heading[:100], code=False) for heading in map(_one_line, headings))
    return f"Its README is about: {named}." if named else ""


def _one_line(text: str) -> str:
    """Return a text on one line, with spaces for its line ends."""
    return printable(SPACE.sub(" ", text))


def _inline(text: str, code: bool) -> str:
    if code and text.strip():
        return f"`{text.replace('`', ' ').strip()}`"
    return SPECIAL.sub(r"\\\g<0>", text)


def _escaped(text: str) -> str:
    return _at_line_start(_inline(_one_line(text)[:200].strip(), code=False))


def _at_line_start(text: str) -> str:
    """Return a line so that it begins no list, quotation, heading or rule."""
    return LEADING.sub(r"\\", text, count=1) if re.match(r"[-+=#>~:|_&]|\d+[.)]", text) else text


def _table(entry_points: Iterable[EntryPoint]) -> str:
    rows = _bounded(f"| {_task(each)} | `{each.file}` |" for each in entry_points)
    return "\n".join(["| task | file |", "|---|---|", *rows]) if rows else ""


def _task(entry_point: EntryPoint) -> str:
    return " ".join(filter(None, [entry_point.task, ", ".join(f"`{each}`" for each in entry_point.commands)]))


def _checks(seen: Surroundings) -> str:
    commands = [f"- [ ] `{command}` passes." for command in seen.checks]
    return "\n".join(commands or ([f"- [ ] The tests in `{seen.tests}/` pass."] if seen.tests else []))


def _exports(exports: Exports) -> str:
    return f"- `{exports.file}`: {', '.join(f'`{name}`' for name in exports.names)}"


def _downlink(folder: str, file: str) -> str:
    return f"- [{_inline(_one_line(folder), code=False)}]({quote(file)})"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(_bounded(lines))


def _bounded(lines: Iterable[str]) -> list[str]:
    """Return the first lines that a list has room for."""
    kept: list[str] = []
    left = LIST_CHARACTERS
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            break
        kept.append(line)
    return kept
