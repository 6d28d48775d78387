"""Links and inline code in Markdown with their lines, and which of them are paths."""

from __future__ import annotations

import posixpath
import re
from enum import Enum, auto
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline, backtick, link
from markdown_it.token import Token

from cstp_grpc.common.lazy_dataclass import dataclass
from cstp_grpc.contract.errors import InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer.model import ROOT
from cstp_grpc.modules.intent_layer.node_document import LINE_END, MAX_NESTING
from cstp_grpc.modules.intent_layer.project_files import MAX_PATH_BYTES, join_path, name_of, parent_of
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree

MAX_CHARACTERS = 32_768
"""Characters of a text that are parsed. Measured: a text made to be slow takes the parser up to 40 µs a character."""
MENTIONS_KEY = "mentions"
MENTION_HINT = re.compile(r"[`\[]")


class MentionKind(Enum):
    """The kind of a mention."""

    LINK = auto()
    CODE = auto()


@dataclass(frozen=True, slots=True)
class Mention:
    """The target of a link, or the content of inline code outside links, with its line."""

    kind: MentionKind
    text: str
    line: int


def find_mentions(text: str, line: int = 1, definitions: str = "") -> tuple[Mention, ...]:
    """Return the mentions of a text in order; its first line has number `line`.

    `definitions` are link definitions from elsewhere. Code blocks and HTML mention nothing, nor does text after the
    first `MAX_CHARACTERS` characters.
    """
    if not MENTION_HINT.search(text):
        return ()
    env: dict[str, object] = {}
    tokens: list[Token] = []
    # Definitions go behind the text, so that the line numbers in front of them stay right.
    source = LINE_END.sub("\n", f"{text[:MAX_CHARACTERS]}\n\n{definitions[:MAX_CHARACTERS]}").replace("\0", "\ufffd")
    MENTION_PARSER.block.parse(source, MENTION_PARSER, env, tokens)
    found: list[Mention] = []
    for token in tokens:
        if token.type == "inline" and token.map and MENTION_HINT.search(token.content):
            found += _mentions_in_inline(token.content, line + token.map[0], env)
    return tuple(found)


def _mentions_in_inline(content: str, line: int, env: dict[str, object]) -> list[Mention]:
    # The rules below collect into `env`, which the parser passes through: it is shared by all threads and has no state.
    mentions: list[tuple[MentionKind, str, int]] = []
    env[MENTIONS_KEY] = mentions
    MENTION_PARSER.inline.parse(content, MENTION_PARSER, env, [])
    return [Mention(kind, text, line + content.count("\n", 0, offset)) for kind, text, offset in mentions]


def _collect_code(state: StateInline, silent: bool) -> bool:
    # silent: the parser only looks for the end of an enclosing construct, and will parse this again.
    start = state.pos
    count = len(state.tokens)
    matched = backtick(state, silent)
    if matched and not silent and state.linkLevel == 0:
        spans = [token.content for token in state.tokens[count:] if token.type == "code_inline"]
        state.env[MENTIONS_KEY] += [(MentionKind.CODE, span, start) for span in spans]
    return matched


def _collect_link(state: StateInline, silent: bool) -> bool:
    start = state.pos
    count = len(state.tokens)
    matched = link(state, silent)
    if matched and not silent:
        hrefs = [token.attrGet("href") for token in state.tokens[count:] if token.type == "link_open"]
        state.env[MENTIONS_KEY] += [(MentionKind.LINK, str(href), start) for href in hrefs]
    return matched


class _MentionParser(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: ARG002, N802
        """Take links of every scheme; nothing is rendered."""
        return True


def _build_mention_parser() -> MarkdownIt:
    parser = _MentionParser("commonmark", {"maxNesting": MAX_NESTING})
    # Emphasis takes the longest on texts made to be slow, and changes no mention.
    parser.disable(["image", "emphasis", "entity"])
    parser.inline.ruler.at("backticks", _collect_code)
    parser.inline.ruler.at("link", _collect_link)
    # The rulers of markdown-it compile their chains at first use, which two threads must not do at once.
    parser.parse("text", {MENTIONS_KEY: []})
    return parser


MENTION_PARSER = _build_mention_parser()


CODE_EXTENSION_TEXT = (
    "astro bash bat c cc cjs clj cljs cpp cs cts cxx dart erl ex exs fish fs go h hh hpp hs ipynb java jl js jsx kt kts"
    " lua m mjs ml mli mts nim php pl pm proto ps1 py pyi rb rs scala sh sql svelte swift ts tsx vue zig zsh"
)
TEXT_EXTENSION_TEXT = (
    "adoc bzl cfg cmake conf css csv feature gql gradle graphql hcl htm html ini json json5 jsonl less lock md mdx mk"
    " nix properties rst sass scss svg tf thrift toml tsv txt xml yaml yml"
)
CODE_EXTENSIONS = frozenset(CODE_EXTENSION_TEXT.split())
EXTENSIONS = CODE_EXTENSIONS | frozenset(TEXT_EXTENSION_TEXT.split())
"""Common file extensions; inline code without a slash is a path only with one of them."""
NAMES_THAT_ARE_NO_FILES = frozenset(
    {"node.js", "next.js", "vue.js", "nuxt.js", "three.js", "d3.js", "react.js", "express.js"}
)
"""Product names that look like file names."""

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:|//")
PLACEHOLDER = re.compile(r"\.\.\.|…|[*?<>{}$%|]|(?:^|/)path/to(?:/|$)|YYYY|NNNN|XXXX")
PLAIN_PATH = re.compile(r"(?!-|@|/)[\w.@+~()\[\]/-]+(?<!\))")
DOMAIN = re.compile(r"[\w-]+(?:\.[\w-]+)*\.(?:ai|app|com|dev|edu|gov|io|net|org)/")

PERSONAL_PATH = re.compile(
    r"/(?:home|Users)/[^/\s]+/\S|/root/\S|[A-Za-z]:(?:\\{1,2}|/)(?!/)\w|\\{2,4}\w[^\\]*\\|file:/|~/(?!\.)\w"
)
"""Paths in personal folders, and drive and UNC paths of Windows; also within a command."""
SYSTEM_PATH = re.compile(r"/(?:builds|etc|mnt|opt|private|srv|tmp|usr|var|Volumes|workspaces?)/[^/\s]")
SOURCE_PATH = re.compile(r"/(?:[\w.@+-]+/)+[\w.@+-]+\.(\w+)")
WORD_BREAK = re.compile(r"[\s\"'=,;()<>|&]+")
MAYBE_ABSOLUTE = re.compile(r"[`(<\s\"'=,;|&](?:/[A-Za-z]|~/|[A-Za-z]:[\\/]|\\\\|file:/)")
"""A cheap test that every text with an absolute path in it passes."""


@dataclass(frozen=True, slots=True)
class WrittenPath:
    """A path as written; one that is not `certain` counts only if its first folder exists."""

    text: str
    certain: bool = True


def path_of_mention(mention: Mention) -> WrittenPath | None:
    """Return the path that a mention is, or None.

    Addresses, anchors, patterns, commands, flags and routes are not paths.
    """
    if mention.kind is MentionKind.CODE:
        return _path_of_code(mention.text.strip())
    path = path_of_link(mention.text)
    return WrittenPath(path) if path and not PLACEHOLDER.search(path) else None


def is_absolute(mention: Mention, root: str) -> bool:
    """Return whether a mention is an absolute path of one machine; `root` is the project's folder here.

    A text that could begin a URL path counts only below folders that every machine has, or if it names source code.
    """
    text = unquote(mention.text.strip()) if mention.kind is MentionKind.LINK else mention.text.strip()
    if any(PERSONAL_PATH.match(word) or _is_below(word, root) for word in WORD_BREAK.split(text)):
        return True
    if WORD_BREAK.search(text):
        return False
    source = SOURCE_PATH.fullmatch(text)
    return bool(SYSTEM_PATH.match(text) or (source and source[1].lower() in CODE_EXTENSIONS - {"js", "mjs", "php"}))


def _is_below(word: str, root: str) -> bool:
    return len(root) > 1 and (word == root or word.startswith(f"{root}/"))


def path_of_link(address: str) -> str | None:
    """Return the path that a link leads to, or None for addresses and anchors."""
    if SCHEME.match(address):
        return None
    path = unquote(address.partition("#")[0].partition("?")[0])
    return path if path.strip("/") else None


def _path_of_code(text: str) -> WrittenPath | None:
    """Return the path in inline code, without a line number, test name or fragment after it."""
    if SCHEME.match(text) and "://" in text:
        return None
    path = text.partition("#")[0].partition(":")[0]
    if not PLAIN_PATH.fullmatch(path) or PLACEHOLDER.search(text) or "//" in path or path.startswith("~"):
        return None
    name = name_of(path.rstrip("/"))
    stem, dot, extension = name.rpartition(".")
    # `example.org/page` is an address, and `...` stands for anything.
    if DOMAIN.match(path) or not name.strip("."):
        return None
    if dot and stem and extension.lower() in EXTENSIONS:
        return None if name.lower() in NAMES_THAT_ARE_NO_FILES else WrittenPath(path)
    # A word, or a file of a kind that no project has.
    if "/" not in path or (dot and stem):
        return None
    # A folder for sure only where it says so: `and/or` has a slash, too.
    return WrittenPath(path, certain=path.endswith("/"))


class PathExistenceCache:
    """Caches which paths of a project exist, during one validation."""

    def __init__(self, tree: ProjectTree) -> None:
        self._tree = tree
        self._known: dict[str, bool] = {}

    def find(self, folder: str, written: str) -> str | None:
        """Return the existing path that a node means: below its folder, else below the root."""
        return next((path for path in possible_paths(folder, written) if self.exists(path)), None)

    def first_folder_exists(self, folder: str, written: str) -> bool:
        first = written.removeprefix("./").partition("/")[0]
        return any(self.exists(path) for path in possible_paths(folder, first))

    def exists(self, path: str) -> bool:
        """Return whether a path exists; symbolic links are followed within the project."""
        if path == ROOT:
            return True
        if len(path) > MAX_PATH_BYTES:
            return False
        ends = [at for at, sign in enumerate(path) if sign == "/"]
        # Folder by folder, so that `missing/a` and `missing/b` cost one look-up together.
        return all(self._exists_cached(path[:end]) for end in [*ends, len(path)])

    def _exists_cached(self, path: str) -> bool:
        if path not in self._known:
            self._known[path] = self._look_up(path)
        return self._known[path]

    def _look_up(self, path: str) -> bool:
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
            # Counts as existing: a path that this process may not read is no mistake of the node.
            return True


def possible_paths(folder: str, written: str) -> tuple[str, ...]:
    """Return the paths in the project that a written path can mean in a node, likelier first.

    With a leading slash it is relative to the root, as code hosts read it.
    """
    bases = (ROOT,) if written.startswith("/") else (folder, ROOT)
    paths = (posixpath.normpath(join_path(base, written.strip("/"))) for base in bases)
    return tuple(dict.fromkeys(path for path in paths if path != ".." and not path.startswith(("../", "/"))))
