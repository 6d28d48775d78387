"""What in a node is meant as a path, as far as its looks tell."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from urllib.parse import unquote

from cstp_grpc.errors import InvalidArgument, Unavailable
from cstp_grpc.intent_layer.mentions import Mention, MentionKind
from cstp_grpc.intent_layer.model import ROOT
from cstp_grpc.intent_layer.paths import MAX_PATH_BYTES, joined, name_of, parent_of
from cstp_grpc.intent_layer.tree import Tree

CODE = (
    "astro bash bat c cc cjs clj cljs cpp cs cts cxx dart erl ex exs fish fs go h hh hpp hs ipynb java jl js jsx kt kts"
    " lua m mjs ml mli mts nim php pl pm proto ps1 py pyi rb rs scala sh sql svelte swift ts tsx vue zig zsh"
)
TEXT = (
    "adoc bzl cfg cmake conf css csv feature gql gradle graphql hcl htm html ini json json5 jsonl less lock md mdx mk"
    " nix properties rst sass scss svg tf thrift toml tsv txt xml yaml yml"
)
CODE_EXTENSIONS = frozenset(CODE.split())
EXTENSIONS = CODE_EXTENSIONS | frozenset(TEXT.split())
"""What files are commonly called; inline code without a slash is a path only with one of them."""
NO_FILES = frozenset({"node.js", "next.js", "vue.js", "nuxt.js", "three.js", "d3.js", "react.js", "express.js"})
"""Names of things that look like names of files."""

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:|//")
PLACEHOLDER = re.compile(r"\.\.\.|…|[*?<>{}$%|]|(?:^|/)path/to(?:/|$)|YYYY|NNNN|XXXX")
PLAIN = re.compile(r"(?!-|@|/)[\w.@+~()\[\]/-]+(?<!\))")
DOMAIN = re.compile(r"[\w-]+(?:\.[\w-]+)*\.(?:ai|app|com|dev|edu|gov|io|net|org)/")

PERSONAL = re.compile(
    r"/(?:home|Users)/[^/\s]+/\S|/root/\S|[A-Za-z]:(?:\\{1,2}|/)(?!/)\w|\\{2,4}\w[^\\]*\\|file:/|~/(?!\.)\w"
)
"""Where somebody keeps something on a machine, also within a command."""
SYSTEM = re.compile(r"/(?:builds|etc|mnt|opt|private|srv|tmp|usr|var|Volumes|workspaces?)/[^/\s]")
SOURCE = re.compile(r"/(?:[\w.@+-]+/)+[\w.@+-]+\.(\w+)")
WORD_BREAK = re.compile(r"[\s\"'=,;()<>|&]+")
MAYBE_ABSOLUTE = re.compile(r"[`(<\s\"'=,;|&](?:/[A-Za-z]|~/|[A-Za-z]:[\\/]|\\\\|file:/)")
"""What a text has in it that mentions an absolute path."""


@dataclass(frozen=True, slots=True)
class WrittenPath:
    """A path as it is written; one that is not `certain` is a path only where its first folder is there."""

    text: str
    certain: bool = True


def as_path(mention: Mention) -> WrittenPath | None:
    """Return the path that a mention is; None for addresses, anchors, patterns, commands, flags and routes."""
    if mention.kind is MentionKind.CODE:
        return _of_code(mention.text.strip())
    path = linked_path(mention.text)
    return WrittenPath(path) if path and not PLACEHOLDER.search(path) else None


def is_absolute(mention: Mention, root: str) -> bool:
    """Return whether a mention is a path as a machine has it; `root` is where this one has the project.

    What any URL may begin with is a path only below folders that every machine has, or where it names source code.
    """
    text = unquote(mention.text.strip()) if mention.kind is MentionKind.LINK else mention.text.strip()
    if any(PERSONAL.match(word) or _is_below(word, root) for word in WORD_BREAK.split(text)):
        return True
    if WORD_BREAK.search(text):
        return False
    source = SOURCE.fullmatch(text)
    return bool(SYSTEM.match(text) or (source and source[1].lower() in CODE_EXTENSIONS - {"js", "mjs", "php"}))


def _is_below(word: str, root: str) -> bool:
    return len(root) > 1 and (word == root or word.startswith(f"{root}/"))


def linked_path(address: str) -> str | None:
    """Return the path that a link leads to, whatever it looks like; None for addresses and anchors."""
    if SCHEME.match(address):
        return None
    path = unquote(address.partition("#")[0].partition("?")[0])
    return path if path.strip("/") else None


def _of_code(text: str) -> WrittenPath | None:
    """Return the path in inline code, without the line, the test or the name in the file that may follow it."""
    if SCHEME.match(text) and "://" in text:
        return None
    path = text.partition("#")[0].partition(":")[0]
    if not PLAIN.fullmatch(path) or PLACEHOLDER.search(text) or "//" in path or path.startswith("~"):
        return None
    name = name_of(path.rstrip("/"))
    stem, dot, extension = name.rpartition(".")
    if DOMAIN.match(path) or not name.strip("."):
        return None
    if dot and stem and extension.lower() in EXTENSIONS:
        return None if name.lower() in NO_FILES else WrittenPath(path)
    if "/" not in path or (dot and stem):
        return None
    return WrittenPath(path, certain=path.endswith("/"))


class Places:
    """What is there in a project, looked up once; for the length of one validation."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: dict[str, bool] = {}

    def find(self, folder: str, written: str) -> str | None:
        """Return where a path leads that is written in a folder's node: below the folder, else below the root."""
        return next((path for path in candidates(folder, written) if self.has(path)), None)

    def begins(self, folder: str, written: str) -> bool:
        """Return whether the first folder of a path is there."""
        first = written.removeprefix("./").partition("/")[0]
        return any(self.has(path) for path in candidates(folder, first))

    def has(self, path: str) -> bool:
        """Return whether there is something at a path; links are followed within the project."""
        if path == ROOT:
            return True
        if len(path) > MAX_PATH_BYTES:
            return False
        ends = [at for at, sign in enumerate(path) if sign == "/"]
        return all(self._is_there(path[:end]) for end in [*ends, len(path)])

    def _is_there(self, path: str) -> bool:
        if path not in self._known:
            self._known[path] = self._look(path)
        return self._known[path]

    def _look(self, path: str) -> bool:
        try:
            if self._tree.exists(path):
                return True
            if self._tree.is_folder(parent_of(path)):
                return False
            located = self._tree.locate(path)
            return located != path and self._tree.exists(located)
        except InvalidArgument:
            return False
        except Unavailable:
            # What may not be read may well be there.
            return True


def candidates(folder: str, written: str) -> tuple[str, ...]:
    """Return what a path can mean in a folder's node, the likelier first; what leaves the project is left out.

    With a slash at its beginning it is meant from the root, as code hosts read it.
    """
    bases = (ROOT,) if written.startswith("/") else (folder, ROOT)
    paths = (posixpath.normpath(joined(base, written.strip("/"))) for base in bases)
    return tuple(dict.fromkeys(path for path in paths if path != ".." and not path.startswith(("../", "/"))))
