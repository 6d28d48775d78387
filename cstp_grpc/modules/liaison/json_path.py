"""RFC 9535 JSONPath with a time limit, and the RFC 9485 regular expressions (I-Regexps) in it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from threading import local
from typing import Any

import regex
from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathError, JSONPathNode, JSONPathQuery, filter_expressions
from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction
from jsonpath_rfc9535.segments import JSONPathRecursiveDescentSegment
from jsonpath_rfc9535.selectors import FilterSelector

# RFC 9485, section 3. The check of the JSONPath library does not accept counts of two digits, `[0-9]{16}`, and a filter
# whose pattern it rejects silently matches nothing: a value that a rule should mask would be shared. The possessive
# `*+` keeps the check itself from backtracking.
IREGEXP_GRAMMAR = regex.compile(
    r"""(?x)
    (?(DEFINE)
      (?P<alternatives> (?&branch) (?: \| (?&branch) )* )
      (?P<branch> (?: (?&atom) (?&quantifier)? )*+ )
      (?P<quantifier> [*+?] | \{ [0-9]+ (?: , [0-9]* )? \} )
      (?P<atom> [^()*+.?\[\\\]{|}] | \. | (?&escape) | (?&category) | (?&class) | \( (?&alternatives) \) )
      (?P<escape> \\ [()*+\-.?\[\\\]^nrt{|}] )
      (?P<category> \\ [pP] \{
        (?: L[lmotu]? | M[cen]? | N[dlo]? | P[cdefios]? | Z[lps]? | S[ckmo]? | C[cfno]? ) \} )
      (?P<class> \[ \^? (?: - | (?&member) ) (?&member)*+ -? \] )
      (?P<member> (?&category) | (?&single) (?: - (?&single) )? )
      (?P<single> [^\-\[\\\]] | (?&escape) )
    )
    (?&alternatives)
    """
)

DOT_OR_SKIPPED = regex.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|\.")
"""Matches escapes and character classes, whose dots are literal, and dots that mean any character."""


def compile_iregexp(pattern: str) -> Any:
    """Compile an I-Regexp with the regex library. Raises ValueError if the text is not one."""
    if not IREGEXP_GRAMMAR.fullmatch(pattern):
        raise ValueError(pattern)
    try:
        # RFC 9485, section 5: a dot matches all but line breaks \n and \r; in `regex` only \n is left out.
        return regex.compile(DOT_OR_SKIPPED.sub(lambda found: r"[^\n\r]" if found[0] == "." else found[0], pattern))
    except regex.error as error:
        raise ValueError(pattern) from error


Location = tuple[int | str, ...]
"""Where a value is: the names and indexes on the way to it; empty for the document itself."""


class InvalidJsonPath(Exception):
    """A text is not a JSONPath that can be used; the message says why."""


class TimeBudget(local):
    """The remaining time of the searches of a thread."""

    # Thread-local, because one engine with its functions serves all threads, and the library offers no argument through
    # which a function could get the limit of its call.

    def __init__(self) -> None:
        self._end = 0.0

    def start(self, seconds: float) -> None:
        """Start a time limit of this many seconds."""
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Return the remaining seconds. Raises TimeoutError if none remain."""
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds


class JsonPathEngine:
    """Parse JSONPath queries and find the locations that they select."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._budget = TimeBudget()
        self._environment = JSONPathEnvironment()
        functions = self._environment.function_extensions
        # In place of the library's own, which match without a time limit.
        functions["match"] = IRegexpFunction(self._budget, whole=True)
        functions["search"] = IRegexpFunction(self._budget, whole=False)

    def parse(self, text: str) -> JSONPathQuery:
        """Parse a path. Raises InvalidJsonPath if it is invalid or could take unbounded time."""
        try:
            query = self._environment.compile(text)
        except JSONPathError as error:
            raise InvalidJsonPath(f"it is not an RFC 9535 JSONPath: {error}") from error
        except (ArithmeticError, LookupError, RecursionError, ValueError) as error:
            raise InvalidJsonPath("it is not a readable RFC 9535 JSONPath") from error
        # `$` alone: dropping it would leave no context, and masking it would make it a text.
        if query.empty():
            raise InvalidJsonPath("it selects the whole context, which must stay an object")
        check_query(query)
        return query

    def find(self, queries: Iterable[JSONPathQuery], document: Any) -> list[list[Location]]:
        """Return the locations that each query selects in a document of lists and dicts.

        Raises TimeoutError if that takes longer than allowed, and JSONPathError if a query cannot be evaluated.
        """
        # One limit for all rules together: they are applied while a hand-over waits.
        self._budget.start(self._seconds)
        return [self._locations(query, document) for query in queries]

    def _locations(self, query: JSONPathQuery, document: Any) -> list[Location]:
        nodes: dict[Location, JSONPathNode] = {(): TimedNode(self._budget, document, (), None, document)}
        # Segment by segment, each location once: with `..` several ways lead to one location, and their number grows
        # exponentially with the segments.
        for segment in query.segments:
            nodes = {node.location: node for node in segment.resolve(nodes.values())}
        return list(nodes)


class TimedNode(JSONPathNode):
    """A node of a document whose children can be visited only while time remains."""

    __slots__ = ("_budget",)

    def __init__(
        self, budget: TimeBudget, value: object, location: Location, parent: JSONPathNode | None, root: Any
    ) -> None:
        super().__init__(value=value, location=location, parent=parent, root=root)
        self._budget = budget

    def new_child(self, value: object, key: int | str, parent: JSONPathNode | None) -> TimedNode:
        self._budget.remaining()
        return TimedNode(self._budget, value, (*self.location, key), parent, self.root)


class IRegexpFunction(FilterFunction):
    """The functions match and search with a time limit; patterns are RFC 9485 I-Regexps."""

    arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012 - the library's own form
    return_type = ExpressionType.LOGICAL

    def __init__(self, budget: TimeBudget, *, whole: bool) -> None:
        self._budget = budget
        self._whole = whole
        self._known: dict[str, Any] = {}

    def __call__(self, text: object, pattern: str) -> bool:
        """Return whether a text matches; a value that is not text does not."""
        if not isinstance(text, str):
            return False
        known = self._known.get(pattern)
        if known is None:
            # Bounded by the rules: `check_pattern` rejects patterns that come from a context.
            known = self._known.setdefault(pattern, compile_iregexp(pattern))
        find = known.fullmatch if self._whole else known.search
        # `concurrent` releases the interpreter's lock, so that a slow pattern does not block the event loop.
        return find(text, timeout=self._budget.remaining(), concurrent=True) is not None


def check_query(query: JSONPathQuery, *, within: bool = False) -> None:
    """Raise InvalidJsonPath for a query that could take unbounded time.

    `within` is true for a query in a filter, which runs for every candidate.
    """
    for segment in query.segments:
        if within and isinstance(segment, JSONPathRecursiveDescentSegment):
            raise InvalidJsonPath("`..` within a filter may take too long; write it before the filter")
        if within and len(segment.selectors) > 1:
            raise InvalidJsonPath(
                "several selectors in one bracket within a filter may take too long; write || instead"
            )
        for selector in segment.selectors:
            if isinstance(selector, FilterSelector):
                check_condition(selector.expression.expression)


def check_condition(expression: filter_expressions.Expression) -> None:
    """Raise InvalidJsonPath for a condition that could take unbounded time, or that the library evaluates wrongly."""
    if isinstance(expression, filter_expressions.LogicalExpression):
        check_condition(expression.left)
        check_condition(expression.right)
    elif isinstance(expression, filter_expressions.PrefixExpression):
        check_condition(expression.right)
    elif isinstance(expression, filter_expressions.FilterQuery) and expression.query.empty():
        # The library finds false, 0 and "" missing where `@` is tested alone.
        raise InvalidJsonPath("`@` or `$` alone is always there; write [*] without a filter")
    else:
        check_operand(expression)


def check_operand(expression: filter_expressions.Expression) -> None:
    """Raise InvalidJsonPath for an operand or function argument that could take unbounded time."""
    if isinstance(expression, filter_expressions.ComparisonExpression):
        check_operand(expression.left)
        check_operand(expression.right)
    elif isinstance(expression, filter_expressions.RootFilterQuery) and not expression.query.singular_query():
        raise InvalidJsonPath("`$` within a filter may be followed by names and indexes only, or it may take too long")
    elif isinstance(expression, filter_expressions.FilterQuery):
        check_query(expression.query, within=True)
    elif isinstance(expression, filter_expressions.FunctionExtension):
        for argument in expression.args:
            check_operand(argument)
        if expression.name in ("match", "search"):
            check_pattern(expression.args[1])


def check_pattern(argument: filter_expressions.Expression) -> None:
    """Raise InvalidJsonPath for a pattern that is not a literal I-Regexp: a context must not choose it."""
    if not isinstance(argument, filter_expressions.StringLiteral):
        raise InvalidJsonPath("the pattern of match and search must be written in the path")
    try:
        compile_iregexp(argument.value)
    except ValueError as error:
        raise InvalidJsonPath(f"{argument} is not an RFC 9485 regular expression") from error
