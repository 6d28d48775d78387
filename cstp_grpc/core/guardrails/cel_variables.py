"""Find the variables that an expression reads.

Variables have dotted names such as `context.x`, so that the engine knows the type of each and rejects a misspelt one.
The price: for a dotted variable the engine's own `has` returns the value instead of whether it exists. So
`has(context.x)` is rewritten to a variable of its own, `has.context.x`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cstp_grpc.common.lazy_dataclass import dataclass, field, replace
from cstp_grpc.contract.enums import Stakes
from cstp_grpc.core.guardrails.cel_text import CelToken, RuleExpressionError, starts_operand, tokenize_expression
from cstp_grpc.core.guardrails.cel_tree import CelNode
from cstp_grpc.core.guardrails.command_methods import COMMAND_METHODS, check_method_arguments, write_method
from cstp_grpc.core.guardrails.history import HistoryMeasure, HistoryQuery, HistoryScope, parse_history_seconds
from cstp_grpc.core.guardrails.plain_sentences import MAX_PHRASE_WORDS, Intention, normalize_words, phrase_words

VARIABLE_ROOTS = frozenset({"action", "agent", "context", "parameters", "stakes", "code"})
PARAMETER_PREFIX = "parameters."
"""Prefix of the names of a rulebook's parameters, whose values replace them before anything is evaluated."""
NOW_VARIABLE = "now"
"""The variable of the instant of the check."""
MENTIONS_VARIABLE = "action.mentions"
"""The variable of the words of the action, which expressions read as `action.mentions(["drop table"])` only."""
INTENDS_VARIABLE = "action.intends"
"""The variable of its intentions, which expressions read as `action.intends(["drop"], ["table"])` only."""
INTENTS_VARIABLE = "intents"
"""The variable of the related intents, which expressions read as `intents.related("1h")` only."""
COMMANDS_VARIABLE = "commands"
"""The variable of the commands that the action runs."""
HISTORY_ROOT = "history"
"""The word with which expressions ask about the past, as `history.failures(category, "24h")` only."""
VARIABLE_GROUPS = frozenset({"code.boundaries"})
"""Names with nested names, so that a variable's name continues after them."""
RESERVED_NAMES = frozenset(
    {"as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"}
    | {"namespace", "null", "package", "return", "true", "var", "void", "while"}
)
"""Reserved words of CEL (language definition, section Syntax); an input cannot have such a name."""

WINDOW_PATTERN = re.compile(r"([1-9][0-9]{0,4})([smh])")
WINDOW_UNITS = {"s": 1, "m": 60, "h": 3600}
MAX_WINDOW_SECONDS = 24 * 3600
"""The longest time for which related intents are looked up. Chosen: intents of yesterday are done or dropped."""


@dataclass(frozen=True, slots=True)
class RuleExpression:
    """An expression: its `source`, its `text` for the engine, and the variables it reads.

    `values` are those whose value it reads, `presences` those it tests with `has`, and `history` its queries about the
    past. `aligned` is the text in which parts written for the engine are replaced by parts of the same length and type,
    so that the positions in its messages are those in the source. `rewritten` is the source before `replaced` has been
    written for the engine; both are empty for an expression without a source.
    """

    source: str
    text: str
    aligned: str
    values: frozenset[str]
    presences: frozenset[str]
    history: frozenset[HistoryQuery] = frozenset()
    rewritten: str = ""
    replaced: tuple[ReplacedPart, ...] = ()
    phrases: frozenset[str] = frozenset()
    """The phrases by which it names commands, such as `git push`."""
    intentions: frozenset[Intention] = frozenset()
    """The intentions that it looks for in the sentences of the action."""
    tree: CelNode | None = field(default=None, compare=False, repr=False)
    """Its syntax tree, once it was compiled; None before."""

    def cut(self, start: int, end: int) -> RuleExpression:
        """Return the part between two positions of the source, which must be an expression itself.

        It reads at most the variables of the whole.
        """
        inside = [each for each in self.replaced if start <= each.start and each.end <= end]
        moved = [each._replace(start=each.start - start, end=each.end - start) for each in inside]
        rewritten = self.rewritten[start:end]
        return replace(
            self,
            source=self.source[start:end],
            text=replace_parts(rewritten, moved, aligned=False),
            aligned=replace_parts(rewritten, moved, aligned=True),
            rewritten=rewritten,
            replaced=tuple(moved),
            tree=None,
        )


def presence_variable(name: str) -> str:
    return f"has.{name}"


class ReplacedPart(NamedTuple):
    """A part of an expression that the engine gets in other words: these, its first character, and the one behind it.

    `aligned` is its replacement in the aligned text; None for the part itself.
    """

    text: str
    aligned: str | None
    start: int
    end: int


@dataclass(slots=True)
class ExpressionScan:
    """The variables found so far; `text` is rewritten without changing its length."""

    tokens: Sequence[CelToken]
    constants: Mapping[str, str]
    text: list[str]
    values: set[str] = field(default_factory=set)
    presences: set[str] = field(default_factory=set)
    history: set[HistoryQuery] = field(default_factory=set)
    replaced: list[ReplacedPart] = field(default_factory=list)
    phrases: set[str] = field(default_factory=set)
    intentions: set[Intention] = field(default_factory=set)

    def take_method(self, position: int) -> int:
        """Take a method of a command, and return the position of its last token. Raises RuleExpressionError."""
        method = self.tokens[position]
        texts, end = read_text_arguments(self.tokens, position)
        check_method_arguments(method.text, texts)
        if method.text == "runs":
            self.phrases.update(texts)
        part = write_method(method.text, texts)
        # A field of its type, which is shorter than any call.
        self.replaced.append(ReplacedPart(part, "remote", method.start, self.tokens[end].start + 1))
        return end

    def take_operand(self, position: int) -> int:
        """Take an operand that begins with a name, and return the position of its last token that is done with.

        Raises RuleExpressionError.
        """
        tokens, token = self.tokens, self.tokens[position]
        if token.text == "has" and is_presence_test(tokens, position):
            self.presences.add(read_variable_name(tokens, position + 2))
            # As long as before, so that the columns in messages stay right: `has(context.x)`, `has.context.x `.
            self.text[tokens[position + 1].start] = "."
            self.text[tokens[position + 5].start] = " "
            return position + 5
        if token.text in VARIABLE_ROOTS:
            self._take_variable(position)
        elif token.text in (NOW_VARIABLE, COMMANDS_VARIABLE):
            self.values.add(token.text)
        elif token.text == INTENTS_VARIABLE:
            check_intents_call(tokens[position + 1 : position + 6])
            self.values.add(INTENTS_VARIABLE)
        elif token.text == HISTORY_ROOT:
            query, end = read_history_call(tokens, position, self.constants)
            self.history.add(query)
            self.values.add(query.variable)
            # A number, as the answer is.
            part = ReplacedPart(f'{query.variable}["{query.key}"]', "0", token.start, tokens[end].start + 1)
            self.replaced.append(part)
            return end
        return position

    def _take_variable(self, position: int) -> None:
        name = read_variable_name(self.tokens, position)
        if name in self.constants:
            first, last = self.tokens[position], self.tokens[position + 2]
            # A parameter is a variable of its type in the aligned text.
            self.replaced.append(ReplacedPart(self.constants[name], None, first.start, last.start + len(last.text)))
            return
        self.values.add(name)
        if name == MENTIONS_VARIABLE:
            self.replaced.append(read_mentions_call(self.tokens, position))
        elif name == INTENDS_VARIABLE:
            intention, end = read_intends_call(self.tokens, position)
            self.intentions.add(intention)
            part = f'("{intention.key}" in {INTENDS_VARIABLE})'
            self.replaced.append(ReplacedPart(part, "true", self.tokens[position].start, end))


def scan_expression(source: str, constants: Mapping[str, str]) -> RuleExpression:
    """Find the variables of an expression.

    `constants` are the literals that replace parameters, by their full names. Raises RuleExpressionError if a variable
    is not read by its full name.
    """
    tokens = tokenize_expression(source)
    scan = ExpressionScan(tokens, constants, list(source))
    position = 0
    while position < len(tokens):
        if tokens[position].kind == "name" and starts_operand(tokens, position):
            position = scan.take_operand(position)
        elif tokens[position].text in COMMAND_METHODS:
            around = [token.text for token in tokens[max(0, position - 1) : position + 2 : 2]]
            if around == [".", "("]:
                position = scan.take_method(position)
        position += 1
    return RuleExpression(
        source,
        replace_parts(scan.text, scan.replaced, aligned=False),
        replace_parts(scan.text, scan.replaced, aligned=True),
        frozenset(scan.values),
        frozenset(scan.presences),
        frozenset(scan.history),
        "".join(scan.text),
        tuple(scan.replaced),
        frozenset(scan.phrases),
        frozenset(scan.intentions),
    )


def read_text_arguments(tokens: Sequence[CelToken], position: int) -> tuple[list[str], int]:
    """Return the plain texts between the parentheses behind a name, and the position of the closing one.

    Raises RuleExpressionError.
    """
    texts: list[str] = []
    place = position + 2
    while place < len(tokens) and tokens[place].text != ")":
        if not is_plain_text(tokens[place]):
            break
        texts.append(tokens[place].text[1:-1])
        place += 2 if tokens[place + 1 : place + 2] and tokens[place + 1].text == "," else 1
    if place >= len(tokens) or tokens[place].text != ")":
        name = tokens[position].text
        raise RuleExpressionError(f'{name}() takes texts in plain quotes, such as c.{name}("a", "b")')
    return texts, place


MAX_PHRASES = 200
"""Maximum number of phrases in a call. Chosen: each costs some steps in every check."""
MENTIONS_HINT = 'action.mentions takes a list of texts in plain quotes: action.mentions(["drop table", "truncate"])'
INTENDS_HINT = (
    "action.intends takes lists of texts in plain quotes: verbs, objects and qualifiers, as in"
    ' action.intends(["delete", "drop"], ["record"], ["all", "every"])'
)


def read_mentions_call(tokens: Sequence[CelToken], position: int) -> ReplacedPart:
    """Return the call of `action.mentions` that starts at `position` as searches. Raises RuleExpressionError.

    Searching the words with the engine's own `contains` is faster than any function in Python.
    """
    [listed], end = read_text_lists(tokens, position, 1, MENTIONS_HINT)
    phrases = list(map(normalize_words, listed))
    if not all(phrase.strip() for phrase in phrases):
        raise RuleExpressionError("asks action.mentions for a phrase without words")
    searches = " || ".join(f'{MENTIONS_VARIABLE}.contains("{phrase}")' for phrase in phrases)
    return ReplacedPart(f"({searches})", "true", tokens[position].start, end)


def read_intends_call(tokens: Sequence[CelToken], position: int) -> tuple[Intention, int]:
    """Return the intention that the call at `position` looks for, and its end. Raises RuleExpressionError."""
    lists, end = read_text_lists(tokens, position, 3, INTENDS_HINT)
    words = [[phrase_words(phrase) for phrase in phrases] for phrases in lists]
    if not all(phrase for phrases in words for phrase in phrases):
        raise RuleExpressionError("asks action.intends for a phrase without words")
    if long := [" ".join(phrase) for phrases in words[1:] for phrase in phrases if len(phrase) > MAX_PHRASE_WORDS]:
        raise RuleExpressionError(f'asks action.intends for "{long[0]}", which has more than {MAX_PHRASE_WORDS} words')
    return Intention(*(tuple(map(" ".join, phrases)) for phrases in words)), end


def read_text_lists(tokens: Sequence[CelToken], position: int, most: int, hint: str) -> tuple[list[list[str]], int]:
    """Return the lists of texts of the call at `position`, at most so many, and its end. Raises RuleExpressionError."""
    lists: list[list[str]] = []
    rest = iter([*tokens[position + 3 :], *[CelToken("", "", 0)] * 3])
    separator = next(rest)
    while separator.text == ("," if lists else "(") and len(lists) < most and next(rest).text == "[":
        lists.append([])
        for token in rest:
            if token.text == "]" and (lists[-1] or len(lists) > 1):
                break
            if not is_plain_text(token):
                raise RuleExpressionError(hint)
            lists[-1].append(token.text[1:-1])
            separator = next(rest)
            if separator.text == "]":
                break
            if separator.text != ",":
                raise RuleExpressionError(hint)
        separator = next(rest)
    if not lists or separator.text != ")":
        raise RuleExpressionError(hint)
    if sum(map(len, lists)) > MAX_PHRASES:
        name = tokens[position + 2].text
        raise RuleExpressionError(f"asks action.{name} for more than {MAX_PHRASES} phrases")
    return lists, separator.start + 1


QUOTES = ('"""', "'''")


def is_plain_text(token: CelToken) -> bool:
    """Return whether a token is a text without prefixes and escapes, so that what is compared is what is written."""
    text = token.text
    return token.kind == "string" and text[0] in "\"'" and "\\" not in text and text[:3] not in QUOTES


def replace_parts(text: Sequence[str], replaced: Sequence[ReplacedPart], *, aligned: bool) -> str:
    characters = list(text)
    for part in replaced:
        if not aligned:
            characters[part.start : part.end] = [part.text, *[""] * (part.end - part.start - 1)]
        elif part.aligned is not None:
            # Line breaks stay, as messages name lines.
            kept = ["\n" if each == "\n" else " " for each in characters[part.start + len(part.aligned) : part.end]]
            characters[part.start : part.end] = [*part.aligned, *kept]
    return "".join(characters)


def check_intents_call(tokens: Sequence[CelToken]) -> None:
    """Check that the tokens after `intents` are `.related("1h")`. Raises RuleExpressionError."""
    texts = [token.text for token in tokens]
    if texts[:3] != [".", "related", "("] or texts[4:] != [")"] or tokens[3].kind != "string":
        raise RuleExpressionError('reads intents in another way than intents.related("1h")')
    try:
        # The rest of a string with a prefix or three quotes is not a time, and is refused too.
        parse_window_seconds(texts[3][1:-1])
    except ValueError as error:
        raise RuleExpressionError(f"asks for intents.related of a time that {error}") from None


def parse_window_seconds(text: str) -> int:
    """Return the seconds of a time such as `90s`, `15m` or `1h`. Raises ValueError with the required format."""
    match = WINDOW_PATTERN.fullmatch(text)
    seconds = int(match[1]) * WINDOW_UNITS[match[2]] if match else 0
    if not 0 < seconds <= MAX_WINDOW_SECONDS:
        raise ValueError('must be like "90s", "15m" or "1h", at most "24h"')
    return seconds


HISTORY_HINT = (
    f'use history as in history.failures(category, "24h"): one of {", ".join(HistoryMeasure)}, then any of'
    f" {', '.join(HistoryScope)} that must be the same as the action's, and a time"
)


def read_history_call(
    tokens: Sequence[CelToken], position: int, constants: Mapping[str, str]
) -> tuple[HistoryQuery, int]:
    """Return the question that starts at `position`, and the position of its last parenthesis.

    Raises RuleExpressionError.
    """
    texts = [token.text for token in tokens[position + 1 : position + 4]]
    if texts[:1] != ["."] or texts[1:2] not in [[measure.value] for measure in HistoryMeasure] or texts[2:] != ["("]:
        raise RuleExpressionError(HISTORY_HINT)
    scopes: set[HistoryScope] = set()
    place = position + 4
    while place + 1 < len(tokens) and tokens[place].text in set(HistoryScope) and tokens[place + 1].text == ",":
        scopes.add(HistoryScope(tokens[place].text))
        place += 2
    end = find_closing_parenthesis(tokens, place)
    text = read_constant_time([token.text for token in tokens[place:end]], constants)
    if text is None:
        raise RuleExpressionError(HISTORY_HINT)
    try:
        seconds = parse_history_seconds(text)
    except ValueError as error:
        raise RuleExpressionError(f"asks history of a time that {error}") from None
    # In one order, so that two spellings of a question are one query.
    ordered = tuple(scope for scope in HistoryScope if scope in scopes)
    return HistoryQuery(ordered, HistoryMeasure(texts[1]), seconds), end


def read_constant_time(texts: Sequence[str], constants: Mapping[str, str]) -> str | None:
    """Return the time in tokens that are a text, `duration("24h")` or a parameter; None if they are something else."""
    if len(texts) == 3 and (literal := constants.get("".join(texts))) is not None:
        texts = [token.text for token in tokenize_expression(literal)]
    if len(texts) == 4 and (texts[0], texts[1], texts[3]) == ("duration", "(", ")"):
        texts = texts[2:3]
    # Without prefixes and escapes, so that the source is the time.
    if len(texts) != 1 or texts[0][:1] not in ('"', "'") or texts[0][:3] in QUOTES or "\\" in texts[0]:
        return None
    return texts[0][1:-1]


def is_presence_test(tokens: Sequence[CelToken], position: int) -> bool:
    """Return True if `has` at `position` tests a variable, not a field of a value. Raises RuleExpressionError."""
    texts = [token.text for token in tokens[position + 1 : position + 6]]
    # The rewriting replaces just six tokens: `has((context.x))` and `has(.context.x)` mean the same, but have more.
    if texts[:1] != ["("] or texts[1:2] in (["("], ["."]):
        raise RuleExpressionError("has() takes a plain path such as context.x")
    if texts[1:2] == ["code"]:
        raise RuleExpressionError("has() of code is always true; ask for its size: size(code.checks) > 0")
    return len(texts) == 5 and texts[1] in VARIABLE_ROOTS and texts[2] == "." and texts[4] == ")"


def read_variable_name(tokens: Sequence[CelToken], position: int) -> str:
    """Return the dotted name that starts at `position`. Raises RuleExpressionError."""
    name = tokens[position].text
    while name in VARIABLE_ROOTS or name in VARIABLE_GROUPS:
        rest = tokens[position + 1 : position + 3]
        if len(rest) < 2 or rest[0].text != "." or rest[1].kind != "name":
            raise RuleExpressionError(f"reads {name} as a whole; read it by name: {name}.NAME")
        name = f"{name}.{rest[1].text}"
        position += 2
    return name


def find_closing_parenthesis(tokens: Sequence[CelToken], position: int) -> int:
    """Return the position of the parenthesis that closes the one before `position`. Raises RuleExpressionError."""
    depth = 1
    for place in range(position, len(tokens)):
        depth += (tokens[place].text == "(") - (tokens[place].text == ")")
        if depth == 0:
            return place
    raise RuleExpressionError(HISTORY_HINT)


STAKES_ORDER: Mapping[Stakes, int] = {stakes: order for order, stakes in enumerate(Stakes)}
"""The numbers of the stakes in expressions; only their order matters."""
