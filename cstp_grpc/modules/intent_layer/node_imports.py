"""The files that a node's file imports with lines such as `@docs/rules.md`."""

from __future__ import annotations

import re
from collections.abc import Callable

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.errors import InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer.model import BrokenImport, NodeFile
from cstp_grpc.modules.intent_layer.node_document import INTRODUCTION, NodeDocument, parse_blocks, split_front_matter
from cstp_grpc.modules.intent_layer.project_files import is_in_repository, join_path, parent_of

MAX_DEPTH = 5
"""How deep imported files may import others."""
MAX_FILES = 32
"""How many files a node may import."""
MAX_CHARACTERS = 524_288
"""How much text the files that a node imports may have together."""
TOO_MUCH_TEXT = f"is beyond {MAX_CHARACTERS} characters that a node may import"
MAX_LINES = 100
"""How many imports of one file are looked at."""
IMPORTABLE_SUFFIXES = (".md", ".markdown", ".mdx", ".txt")
REPORTS_ROOT = ".intent-layer"
"""The folder of reports, which are not reviewed."""

TARGET = rf"@(\S+(?:{'|'.join(map(re.escape, IMPORTABLE_SUFFIXES))}))"
CANDIDATE = re.compile(rf"^[ \t]*(?:[-*+][ \t]+)?{TARGET}[ \t\r]*$", re.MULTILINE | re.IGNORECASE)
NEWLINE = re.compile(r"\r\n?|\n")
"""The ends of lines for the Markdown parser."""
IMPORT = re.compile(rf"[ \t]*{TARGET}[ \t]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ImportLine:
    """An import line: its number from 1, and the path as written."""

    line: int
    path: str


@dataclass(frozen=True, slots=True)
class ParsedFile:
    """A parsed file with the offsets of its sections and its imports."""

    document: NodeDocument
    file: NodeFile
    imports: tuple[ImportLine, ...]


def find_imports(text: str) -> tuple[ImportLine, ...]:
    """Return the imports of a text: lines of paragraphs and list items that contain nothing else.

    Lines in code, HTML and quotations are not imports.
    """
    # Cheap: most nodes import nothing and need not be parsed for it.
    if not CANDIDATE.search(text):
        return ()
    skipped, body = split_front_matter(text)
    lines = NEWLINE.split(body)
    found: list[ImportLine] = []
    quoted = 0
    for number, token in enumerate(tokens := parse_blocks(body)):
        if token.type.startswith("blockquote"):
            quoted += token.nesting
        elif token.type == "inline" and token.map and not quoted and tokens[number - 1].type == "paragraph_open":
            first = token.map[0]
            # The parser strips what Python calls whitespace, such as a line with a form feed, which begins a paragraph
            # or is all of it.
            while token.content and not lines[first].strip():
                first += 1
            for offset, line in enumerate(token.content.split("\n")):
                if match := IMPORT.fullmatch(line):
                    found.append(ImportLine(skipped + first + offset + 1, match[1]))
    return tuple(found[:MAX_LINES])


class ImportFollower:
    """Resolves the imports of one node's files, reading each imported file once."""

    def __init__(
        self, locate: Callable[[str], str], read: Callable[[str], ParsedFile | None], own: frozenset[str]
    ) -> None:
        """Set the functions that locate a path and read a located file, and the node's own files."""
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
        return tuple(file for file in self._seen.values() if file)

    def follow(self, read: ParsedFile, name: str = INTRODUCTION, depth: int = 1) -> NodeFile:
        """Return a file without its import lines, and import the files they name.

        Text before its first section belongs to the section `name`: an imported text belongs where it is imported.
        """
        followed: set[int] = set()
        for each in read.imports:
            reason = self._import_file(read, each, name, depth)
            if reason is None:
                followed.add(each.line)
            else:
                self.broken.append(BrokenImport(read.file.path, each.line, f"@{each.path}", reason))
        return replace(read.file, sections=read.document.sections(followed, name))

    def _import_file(self, read: ParsedFile, each: ImportLine, name: str, depth: int) -> str | None:
        """Import a file; return the reason if that is impossible."""
        path = ""
        try:
            path = self._target(read.file.path, each.path)
            # Also before the limits: a node's own files are read in any case.
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
                return TOO_MUCH_TEXT
            target = self._read(path)
        except InvalidArgument as error:
            return error.violations[0].description.removeprefix(f"{path} ")
        except Unavailable:
            return "cannot be read"
        if target is None:
            return "is not there"
        if "\0" in target.file.text:
            return "is no text"
        # Counted even if it is then refused: each refused file has cost a read.
        self._characters += len(target.file.text)
        if self._characters > MAX_CHARACTERS:
            return TOO_MUCH_TEXT
        # Marked as seen before its own imports are followed, so that files that import each other end the recursion.
        self._seen[path] = None
        self._seen[path] = self.follow(target, read.document.section_at(each.line, name), depth + 1)
        return None

    def _target(self, file: str, written: str) -> str:
        # Refused as they are written: `locate` knows no home folder and no drive, and would look for a folder called
        # `~`.
        if written.startswith(("/", "~", "\\")):
            raise InvalidArgument.field("path", "is not in the project")
        path = self._locate(join_path(parent_of(file), written))
        if is_in_repository(path) or path.partition("/")[0] == REPORTS_ROOT:
            raise InvalidArgument.field("path", "is in a folder that is not imported from")
        return path
