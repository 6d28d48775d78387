"""The files that a node's file takes in by lines such as `@docs/rules.md`."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from cstp_grpc.errors import InvalidArgument, Unavailable
from cstp_grpc.intent_layer.markdown import INTRODUCTION, Document, block_tokens, markdown_body
from cstp_grpc.intent_layer.model import BrokenImport, NodeFile
from cstp_grpc.intent_layer.paths import in_repository, joined, parent_of

MAX_DEPTH = 5
"""How deep imported files may import others."""
MAX_FILES = 32
"""How many files a node may import."""
MAX_CHARACTERS = 524_288
"""How much text the files that a node imports may have together."""
TOO_MUCH = f"is beyond {MAX_CHARACTERS} characters that a node may import"
MAX_LINES = 100
"""How many imports of one file are looked at."""
ENDINGS = (".md", ".markdown", ".mdx", ".txt")
PRIVATE = ".intent-layer"
"""The folder of reports, whose text nobody has reviewed."""

TARGET = rf"@(\S+(?:{'|'.join(map(re.escape, ENDINGS))}))"
CANDIDATE = re.compile(rf"^[ \t]*(?:[-*+][ \t]+)?{TARGET}[ \t\r]*$", re.MULTILINE | re.IGNORECASE)
IMPORT = re.compile(rf"[ \t]*{TARGET}[ \t]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ImportLine:
    """A line that names a file to take in; `line` counts from 1, `path` is as it is written."""

    line: int
    path: str


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A file with the places of its sections and what it imports."""

    document: Document
    file: NodeFile
    imports: tuple[ImportLine, ...]


def find_imports(text: str) -> tuple[ImportLine, ...]:
    """Return the imports of a text: lines of paragraphs and list items that hold nothing else.

    Those in code, HTML and quotations are none.
    """
    if not CANDIDATE.search(text):
        return ()
    skipped, body = markdown_body(text)
    found: list[ImportLine] = []
    quoted = 0
    for number, token in enumerate(tokens := block_tokens(body)):
        if token.type.startswith("blockquote"):
            quoted += token.nesting
        elif token.type == "inline" and token.map and not quoted and tokens[number - 1].type == "paragraph_open":
            for offset, line in enumerate(token.content.split("\n")):
                if match := IMPORT.fullmatch(line):
                    found.append(ImportLine(skipped + token.map[0] + offset + 1, match[1]))
    return tuple(found[:MAX_LINES])


class ImportFollower:
    """Takes in what the files of one node import, each file once."""

    def __init__(
        self, locate: Callable[[str], str], read: Callable[[str], ReadFile | None], own: frozenset[str]
    ) -> None:
        """Take what locates a path and what reads a located file, as `Tree` does, and the node's own files, located."""
        self._locate = locate
        self._read = read
        self._own = own
        self._seen: dict[str, NodeFile | None] = {}
        self._characters = 0
        self.broken: list[BrokenImport] = []
        self.imports_own = False
        """Whether one file of the node imports another."""

    @property
    def imported(self) -> tuple[NodeFile, ...]:
        """What was taken in, in the order of the imports."""
        return tuple(file for file in self._seen.values() if file)

    def follow(self, read: ReadFile, name: str = INTRODUCTION, depth: int = 1) -> NodeFile:
        """Return a file without its lines that import, and take in what they name.

        What it says before its first section is under `name`: an imported text belongs where it is imported.
        """
        followed: set[int] = set()
        for each in read.imports:
            reason = self._take_in(read, each, name, depth)
            if reason is None:
                followed.add(each.line)
            else:
                self.broken.append(BrokenImport(read.file.path, each.line, f"@{each.path}", reason))
        return replace(read.file, sections=read.document.sections(followed, name))

    def _take_in(self, read: ReadFile, each: ImportLine, name: str, depth: int) -> str | None:
        """Take in a file; return the reason if that cannot be."""
        path = ""
        try:
            path = self._target(read.file.path, each.path)
            if path in self._own:
                self.imports_own = True
                return None
            if path in self._seen:
                return None
            if depth > MAX_DEPTH:
                return f"is imported by more than {MAX_DEPTH} files in turn"
            if len(self._seen) == MAX_FILES:
                return f"is one of more than {MAX_FILES} imports of the node"
            if self._characters > MAX_CHARACTERS:
                return TOO_MUCH
            target = self._read(path)
        except InvalidArgument as error:
            return error.violations[0].description.removeprefix(f"{path} ")
        except Unavailable:
            return "cannot be read"
        if target is None:
            return "is not there"
        if "\0" in target.file.text:
            return "is no text"
        self._characters += len(target.file.text)
        if self._characters > MAX_CHARACTERS:
            return TOO_MUCH
        # It counts as seen while it is read, so that files that import each other come to an end.
        self._seen[path] = None
        self._seen[path] = self.follow(target, read.document.section_at(each.line, name), depth + 1)
        return None

    def _target(self, file: str, written: str) -> str:
        if written.startswith(("/", "~", "\\")):
            raise InvalidArgument.field("path", "is not in the project")
        path = self._locate(joined(parent_of(file), written))
        if in_repository(path) or path.partition("/")[0] == PRIVATE:
            raise InvalidArgument.field("path", "is in a folder that is not imported from")
        return path
