"""The links and the inline code of a piece of Markdown, each with its exact line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline, backtick, link
from markdown_it.token import Token

from cstp_grpc.intent_layer.markdown import LINE_END, MAX_NESTING

MAX_CHARACTERS = 32_768
"""How much of a text is looked at; the parser takes up to 40 µs a character for a text that means to keep it busy."""
FOUND = "mentions"
TELLING = re.compile(r"[`\[]")


class MentionKind(Enum):
    """How something is mentioned."""

    LINK = auto()
    CODE = auto()


@dataclass(frozen=True, slots=True)
class Mention:
    """The target of a link, or the content of inline code outside links; `line` is where it begins."""

    kind: MentionKind
    text: str
    line: int


def mentions(text: str, line: int = 1, definitions: str = "") -> tuple[Mention, ...]:
    """Return what a text mentions, in its order; its first line is number `line`.

    `definitions` are link definitions that stand elsewhere. Code blocks and HTML mention nothing, nor does what stands
    after the first `MAX_CHARACTERS` characters.
    """
    if not TELLING.search(text):
        return ()
    env: dict[str, object] = {}
    tokens: list[Token] = []
    source = LINE_END.sub("\n", f"{text[:MAX_CHARACTERS]}\n\n{definitions[:MAX_CHARACTERS]}").replace("\0", "\ufffd")
    PARSER.block.parse(source, PARSER, env, tokens)
    found: list[Mention] = []
    for token in tokens:
        if token.type == "inline" and token.map and TELLING.search(token.content):
            found += _of_inline(token.content, line + token.map[0], env)
    return tuple(found)


def _of_inline(content: str, line: int, env: dict[str, object]) -> list[Mention]:
    places: list[tuple[MentionKind, str, int]] = []
    env[FOUND] = places
    PARSER.inline.parse(content, PARSER, env, [])
    return [Mention(kind, text, line + content.count("\n", 0, place)) for kind, text, place in places]


def _code(state: StateInline, silent: bool) -> bool:
    start = state.pos
    count = len(state.tokens)
    matched = backtick(state, silent)
    if matched and not silent and state.linkLevel == 0:
        spans = [token.content for token in state.tokens[count:] if token.type == "code_inline"]
        state.env[FOUND] += [(MentionKind.CODE, span, start) for span in spans]
    return matched


def _link(state: StateInline, silent: bool) -> bool:
    start = state.pos
    count = len(state.tokens)
    matched = link(state, silent)
    if matched and not silent:
        hrefs = [token.attrGet("href") for token in state.tokens[count:] if token.type == "link_open"]
        state.env[FOUND] += [(MentionKind.LINK, str(href), start) for href in hrefs]
    return matched


class _Parser(MarkdownIt):
    def validateLink(self, url: str) -> bool:  # noqa: ARG002, N802
        """Take links of every scheme; nothing is rendered."""
        return True


def _parser() -> MarkdownIt:
    parser = _Parser("commonmark", {"maxNesting": MAX_NESTING})
    parser.disable(["image", "emphasis", "entity"])
    parser.inline.ruler.at("backticks", _code)
    parser.inline.ruler.at("link", _link)
    # The rulers compile their chains at first use, which two threads must not do at once.
    parser.parse("text", {FOUND: []})
    return parser


PARSER = _parser()
