"""An overview of a project folder, read from the beginning of a few of its files."""

from __future__ import annotations

import ast
import json
import posixpath
import re
import tomllib
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice, pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.errors import InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer.model import ROOT
from cstp_grpc.modules.intent_layer.node_document import MAX_NESTING
from cstp_grpc.modules.intent_layer.path_mentions import CODE_EXTENSIONS
from cstp_grpc.modules.intent_layer.project_files import FolderListing, join_path
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree

MAX_BYTES = 262_144
"""Maximum bytes of a file that is read. Chosen, as all limits here, so that an overview is quick in any folder."""
README_CHARACTERS = 32_768
"""Characters of a README that are parsed."""
PARAGRAPH_CHARACTERS = 4_096
"""Characters of one of its paragraphs that are parsed."""
MAX_MODULES = 20
"""Modules whose exports are read."""
MAX_FOLDERS = 2_000
"""Folders that are searched for nodes below."""
MAX_NAMES = 12
"""Headings, scripts, targets or exports of one file that are named."""

README = re.compile(r"readme(?:\.md|\.markdown)?", re.IGNORECASE)
TASK_BY_FILE_STEM = {
    "__main__": "Follow a run of the package",
    "main": "Follow a run of the program",
    "index": "See what is exported",
    "app": "See how the application is put together",
    "cli": "Follow a command",
    "server": "Follow how it serves",
    "manage": "Run a management command",
    "lib": "See what is exported",
    "mod": "See what is exported",
}
"""The task for which a file is opened, by its name without extension."""
MAKEFILES = ("GNUmakefile", "makefile", "Makefile")
TEST_FOLDERS = ("tests", "test", "__tests__", "spec")
SCRIPT_EXTENSIONS = frozenset({"js", "jsx", "mjs", "ts", "tsx", "mts"})
PLAIN_PATH = re.compile(r"[\w.@+-]+(?:/[\w.@+-]+)*")
"""Names that need no escaping in inline code."""
MAKE_TARGET = re.compile(r"^([A-Za-z0-9][\w.-]*)[ \t]*:(?![:=])", re.MULTILINE)
SCRIPT_EXPORT = re.compile(
    r"^export[ \t]+(?:default[ \t]+)?(?:declare[ \t]+)?(?:abstract[ \t]+)?(?:async[ \t]+)?"
    r"(?:function\*?|class|const|let|var|interface|type|enum|namespace)[ \t]+([A-Za-z_$][\w$]*)",
    re.MULTILINE,
)
SCRIPT_EXPORT_LIST = re.compile(r"^export[ \t]+(?:type[ \t]+)?\{([^{}]{0,4000})\}", re.MULTILINE)
EXPORTED_AS = re.compile(r"(?:type\s+)?(?:[\w$]+\s+as\s+)?([A-Za-z_$][\w$]*)")


@dataclass(frozen=True, slots=True)
class ReadmeText:
    """A piece of a README: plain text, or inline code."""

    text: str
    code: bool = False


@dataclass(frozen=True, slots=True)
class Readme:
    """The beginning of a README: title, first paragraph, and headings of level 2.

    Without a paragraph, the docstring of a Python package replaces it.
    """

    title: str = ""
    paragraph: tuple[ReadmeText, ...] = ()
    headings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """A file to begin a task with, relative to the folder; `commands` are those of the task."""

    task: str
    file: str
    commands: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModuleExports:
    """The exported names of a module."""

    file: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FolderOverview:
    """An overview of a folder; all paths are relative to it."""

    readme: Readme
    entry_points: tuple[EntryPoint, ...]
    exports: tuple[ModuleExports, ...]
    children: tuple[tuple[str, str], ...]
    """The folders and files of the nearest nodes below."""
    tests: str | None
    checks: tuple[str, ...]
    """Commands that run tests."""


def inspect_folder(tree: ProjectTree, folder: str) -> FolderOverview:
    """Return an overview of a folder. Raises Unavailable if it cannot be listed."""
    view = _FolderReader(tree, folder)
    make = view.make_targets()
    package = view.package()
    scripts = [name for name in _as_table(package.get("scripts")) if _is_plain(name.replace(":", "-"))]
    # Declared entry points come before those guessed by name; a dict removes duplicates and keeps the order.
    entry_points = dict.fromkeys([*view.python_scripts(), *view.package_files(package), *view.files_by_name()])
    commands = [
        EntryPoint("Run", "package.json", tuple(f"npm run {name}" for name in scripts[:MAX_NAMES])),
        EntryPoint("Run", view.makefile, tuple(f"make {name}" for name in make[:MAX_NAMES])),
    ]
    return FolderOverview(
        view.readme(),
        (*entry_points, *(each for each in commands if each.commands)),
        tuple(islice((each for each in view.exports() if each.names), MAX_MODULES)),
        tuple(view.children()),
        next((name for name in TEST_FOLDERS if name in view.listing.folders), None),
        (*(["make test"] if "test" in make else []), *(["npm test"] if "test" in scripts else [])),
    )


class _FolderReader:
    """Reads a folder: its listing, and its files as far as they are readable."""

    def __init__(self, tree: ProjectTree, folder: str) -> None:
        self._tree = tree
        self._folder = folder
        self.listing = tree.listing(folder) or FolderListing((), ())
        # In the order in which GNU make looks for them.
        self.makefile = next((name for name in MAKEFILES if name in self.listing.files), "")

    def readme(self) -> Readme:
        name = next((name for name in self.listing.files if README.fullmatch(name)), None)
        readme = _parse_readme(self._text(name)[:README_CHARACTERS]) if name else Readme()
        return readme if readme.paragraph else replace(readme, paragraph=_module_docstring(self._text("__init__.py")))

    def make_targets(self) -> list[str]:
        return list(dict.fromkeys(MAKE_TARGET.findall(self._text(self.makefile)))) if self.makefile else []

    def package(self) -> dict[str, object]:
        try:
            return _as_table(json.loads(self._text("package.json") or "{}"))
        except (ValueError, RecursionError):
            return {}

    def package_files(self, package: dict[str, object]) -> Iterator[EntryPoint]:
        programs = package.get("bin")
        named = programs.items() if isinstance(programs, dict) else [(package.get("name"), programs)]
        for name, path in islice(named, MAX_NAMES):
            if file := self._existing_file(path):
                yield EntryPoint("Run", file, (name,) if _is_plain(name) else ())
        for key in ("main", "module", "types"):
            if file := self._existing_file(package.get(key)):
                yield EntryPoint("See what is exported", file)

    def python_scripts(self) -> Iterator[EntryPoint]:
        try:
            project = _as_table(tomllib.loads(self._text("pyproject.toml")).get("project"))
        except (ValueError, RecursionError):
            return
        scripts = _as_table(project.get("scripts")) | _as_table(project.get("gui-scripts"))
        for name, target in islice(scripts.items(), MAX_NAMES):
            if _is_plain(name):
                module = str(target).partition(":")[0].strip().replace(".", "/")
                candidates = [f"{module}.py", f"src/{module}.py", f"{module}/__init__.py", f"src/{module}/__init__.py"]
                file = next((file for path in candidates if (file := self._existing_file(path))), "pyproject.toml")
                yield EntryPoint("Run", file, (name,))

    def files_by_name(self) -> Iterator[EntryPoint]:
        below = self._tree.listing(join_path(self._folder, "src")) if "src" in self.listing.folders else None
        names = [*self.listing.files, *(f"src/{name}" for name in (below.files if below else ()))]
        for name in names:
            stem, _, extension = posixpath.basename(name).rpartition(".")
            if stem in TASK_BY_FILE_STEM and (extension in CODE_EXTENSIONS or extension == "html") and _is_plain(name):
                yield EntryPoint(TASK_BY_FILE_STEM[stem], name)

    def exports(self) -> Iterator[ModuleExports]:
        files = sorted(
            filter(_is_plain, self.listing.files), key=lambda name: not name.startswith(("__init__", "index"))
        )
        python = [name for name in files if name.endswith(".py") and not name.startswith("test_")]
        if "__init__.py" in python and (declared := _python_exports(self._text("__init__.py"))):
            yield ModuleExports("__init__.py", declared)
            # A package that declares its exports is described by them alone.
            python = []
        for name in [name for name in python if not name.startswith("_")][:MAX_MODULES]:
            yield ModuleExports(name, _python_exports(self._text(name)))
        for name in [name for name in files if _is_source(name)][:MAX_MODULES]:
            yield ModuleExports(name, _script_exports(self._text(name)))

    def children(self) -> Iterator[tuple[str, str]]:
        """Yield the next nodes below, nearest first: folder and file; nodes below those are skipped."""
        # Breadth first, so that the limit on folders cuts the deepest and not the last ones.
        waiting = deque([(ROOT, self.listing)])
        ignored = self._tree.ignored_folders()
        for _ in range(MAX_FOLDERS):
            if not waiting:
                return
            folder, listing = waiting.popleft()
            for name in listing.folders:
                below = join_path(folder, name)
                if ignored.skips(join_path(self._folder, below)):
                    continue
                if file := self._node_file(below):
                    yield below, file
                elif listed := self._listing(below):
                    waiting.append((below, listed))

    def _node_file(self, below: str) -> str | None:
        folder = join_path(self._folder, below) if self._folder != ROOT else below
        try:
            node = self._tree.node(folder)
        except (InvalidArgument, Unavailable):
            return None
        return join_path(below, posixpath.basename(node.path)) if node else None

    def _listing(self, below: str) -> FolderListing | None:
        try:
            return self._tree.listing(join_path(self._folder, below))
        except Unavailable:
            return None

    def _text(self, name: str) -> str:
        """Return a file's text, or empty if it is missing or unreadable."""
        try:
            content = self._tree.read(join_path(self._folder, name), MAX_BYTES)
        except (InvalidArgument, Unavailable):
            return ""
        # An overview is better with a few replacement characters than without the file.
        return (content or b"").decode("utf-8-sig", errors="replace")

    def _existing_file(self, path: object) -> str | None:
        """Return a path in the folder if it is plain and names an existing file."""
        if not isinstance(path, str):
            return None
        normal = posixpath.normpath(path)
        # After normpath a path that leaves the folder begins with `..`.
        if not _is_plain(normal) or normal.startswith("."):
            return None
        file = join_path(self._folder, normal)
        try:
            return normal if self._tree.exists(file) and not self._tree.is_folder(file) else None
        except Unavailable:
            return None


def _is_plain(name: object) -> bool:
    return isinstance(name, str) and len(name) <= 200 and PLAIN_PATH.fullmatch(name) is not None


def _as_table(value: object) -> dict[str, object]:
    return value if isinstance(value, dict) else {}


def _is_source(name: str) -> bool:
    stem, _, extension = name.rpartition(".")
    return extension in SCRIPT_EXTENSIONS and not stem.endswith((".test", ".spec", ".d"))


def _parse_python(text: str) -> ast.Module:
    """Return Python source as a syntax tree, an empty one if it is invalid."""
    try:
        # Parsed, never imported or run: the project may be anybody's. Its invalid escapes are not our warnings.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # The parser of CPython raises the last two for deeply nested source.
        return ast.Module([], [])


def _module_docstring(text: str) -> tuple[ReadmeText, ...]:
    paragraph = (ast.get_docstring(_parse_python(text)) or "").strip().partition("\n\n")[0]
    return (ReadmeText(paragraph),) if paragraph else ()


def _python_exports(text: str) -> tuple[str, ...]:
    """Return the names in a Python module's `__all__`, or else its public classes and functions."""
    body = _parse_python(text).body
    for statement in body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            items = value.elts if isinstance(value, ast.List | ast.Tuple) else []
            return _first_identifiers(item.value for item in items if isinstance(item, ast.Constant))
    defined = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return _first_identifiers(each.name for each in body if isinstance(each, defined) and not each.name.startswith("_"))


def _script_exports(text: str) -> tuple[str, ...]:
    listed = [
        EXPORTED_AS.fullmatch(item.strip()) for items in SCRIPT_EXPORT_LIST.findall(text) for item in items.split(",")
    ]
    return _first_identifiers([*SCRIPT_EXPORT.findall(text), *(match[1] for match in listed if match)])


def _first_identifiers(names: Iterable[object]) -> tuple[str, ...]:
    plain = (name for name in names if isinstance(name, str) and name.isidentifier())
    return tuple(islice(dict.fromkeys(plain), MAX_NAMES))


def _parse_readme(text: str) -> Readme:
    # A parser of its own for each call: the shared one must not be changed while others use it, and this is rare.
    parser = MarkdownIt("commonmark", {"maxNesting": MAX_NESTING})
    env: dict[str, object] = {}
    tokens: list[Token] = []
    parser.block.parse(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd"), parser, env, tokens)
    titles: list[str] = []
    headings: list[str] = []
    paragraph: tuple[ReadmeText, ...] = ()
    for opening, inline in pairwise(tokens):
        if opening.level == 0 and inline.type == "inline":
            if opening.type == "paragraph_open":
                paragraph = paragraph or _inline_text(parser, inline.content, env)
            elif opening.tag in ("h1", "h2"):
                words = _inline_text(parser, inline.content, env)
                (titles if opening.tag == "h1" else headings).append("".join(each.text for each in words))
    return Readme(titles[0] if titles else "", paragraph, tuple(filter(None, headings))[:MAX_NAMES])


def _inline_text(parser: MarkdownIt, content: str, env: dict[str, object]) -> tuple[ReadmeText, ...]:
    """Return the text of a paragraph without images, HTML and link targets; empty if it is blank."""
    tokens: list[Token] = []
    parser.inline.parse(content[:PARAGRAPH_CHARACTERS], parser, env, tokens)
    breaks = ("softbreak", "hardbreak")
    kept = [
        ReadmeText(" " if token.type in breaks else token.content, token.type == "code_inline")
        for token in tokens
        if token.type in ("text", "text_special", "code_inline", *breaks)
    ]
    return tuple(kept) if any(each.text.strip() for each in kept) else ()
