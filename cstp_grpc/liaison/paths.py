"""The places in a JSON document that an RFC 9535 JSONPath selects, found within a bounded time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from threading import local
from typing import Any

from jsonpath_rfc9535 import JSONPathEnvironment, JSONPathError, JSONPathNode, JSONPathQuery
from jsonpath_rfc9535.filter_expressions import (
    ComparisonExpression,
    Expression,
    FilterQuery,
    FunctionExtension,
    LogicalExpression,
    PrefixExpression,
    RootFilterQuery,
    StringLiteral,
)
from jsonpath_rfc9535.function_extensions import ExpressionType, FilterFunction
from jsonpath_rfc9535.segments import JSONPathRecursiveDescentSegment
from jsonpath_rfc9535.selectors import FilterSelector

from cstp_grpc.liaison.patterns import compiled

Location = tuple[int | str, ...]
"""Where a value is: the names and indexes on the way to it; empty for the document itself."""


class PathError(Exception):
    """A text is not a path that can be used; the message says why."""


class Budget(local):
    """The time that is left to the searches of a thread."""

    def __init__(self) -> None:
        self._end = 0.0

    def start(self, seconds: float) -> None:
        """Give so much time from now on."""
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        """Return the seconds that are left. Raises TimeoutError where none are."""
        seconds = self._end - time.monotonic()
        if seconds <= 0:
            raise TimeoutError
        return seconds


class Paths:
    """Reads paths, and finds what they select."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._budget = Budget()
        self._environment = JSONPathEnvironment()
        functions = self._environment.function_extensions
        functions["match"] = Matching(self._budget, whole=True)
        functions["search"] = Matching(self._budget, whole=False)

    def read(self, text: str) -> JSONPathQuery:
        """Return a path. Raises PathError where it is none, or one that could take any time."""
        try:
            query = self._environment.compile(text)
        except JSONPathError as error:
            raise PathError(f"it is no RFC 9535 JSONPath: {error}") from error
        except (ArithmeticError, LookupError, RecursionError, ValueError) as error:
            raise PathError("it is no RFC 9535 JSONPath that can be read") from error
        if query.empty():
            raise PathError("it selects the whole context, which must stay an object")
        check_query(query)
        return query

    def find(self, queries: Iterable[JSONPathQuery], document: Any) -> list[list[Location]]:
        """Return the locations that each query selects in a document of lists and dicts.

        Raises TimeoutError where that takes longer than allowed, and JSONPathError where a query cannot be evaluated.
        """
        self._budget.start(self._seconds)
        return [self._locations(query, document) for query in queries]

    def _locations(self, query: JSONPathQuery, document: Any) -> list[Location]:
        nodes: dict[Location, JSONPathNode] = {(): TimedNode(self._budget, document, (), None, document)}
        # Segment by segment, and each place once: several ways may lead to it, and their number grows exponentially.
        for segment in query.segments:
            nodes = {node.location: node for node in segment.resolve(nodes.values())}
        return list(nodes)


class TimedNode(JSONPathNode):
    """A place in a document, from which one may go on as long as there is time."""

    __slots__ = ("_budget",)

    def __init__(
        self, budget: Budget, value: object, location: Location, parent: JSONPathNode | None, root: Any
    ) -> None:
        super().__init__(value=value, location=location, parent=parent, root=root)
        self._budget = budget

    def new_child(self, value: object, key: int | str, parent: JSONPathNode | None) -> TimedNode:
        """Return a place below."""
        self._budget.left()
        return TimedNode(self._budget, value, (*self.location, key), parent, self.root)


class Matching(FilterFunction):
    """The functions match and search, within the time that is left; patterns are RFC 9485 I-Regexps."""

    arg_types = [ExpressionType.VALUE, ExpressionType.VALUE]  # noqa: RUF012 - the library's own form
    return_type = ExpressionType.LOGICAL

    def __init__(self, budget: Budget, *, whole: bool) -> None:
        self._budget = budget
        self._whole = whole
        self._known: dict[str, Any] = {}

    def __call__(self, text: object, pattern: str) -> bool:
        """Tell whether a text matches; what is no text does not."""
        if not isinstance(text, str):
            return False
        known = self._known.get(pattern)
        if known is None:
            # No more than the rules name: a context cannot choose patterns.
            known = self._known.setdefault(pattern, compiled(pattern))
        find = known.fullmatch if self._whole else known.search
        return find(text, timeout=self._budget.left(), concurrent=True) is not None


def check_query(query: JSONPathQuery, *, within: bool = False) -> None:
    """Refuse what could take any time. `within` is true for a query in a filter, which is run for every candidate.

    Raises PathError.
    """
    for segment in query.segments:
        if within and isinstance(segment, JSONPathRecursiveDescentSegment):
            raise PathError("`..` within a filter may take too long; write it before the filter")
        if within and len(segment.selectors) > 1:
            raise PathError("several selectors in one bracket within a filter may take too long; write || instead")
        for selector in segment.selectors:
            if isinstance(selector, FilterSelector):
                check_test(selector.expression.expression)


def check_test(expression: Expression) -> None:
    """Refuse a condition that could take any time, or that the library judges otherwise than RFC 9535.

    Raises PathError.
    """
    if isinstance(expression, LogicalExpression):
        check_test(expression.left)
        check_test(expression.right)
    elif isinstance(expression, PrefixExpression):
        check_test(expression.right)
    elif isinstance(expression, FilterQuery) and expression.query.empty():
        # The library finds false, 0 and "" missing where `@` is tested alone.
        raise PathError("`@` or `$` alone is always there; write [*] without a filter")
    else:
        check_operand(expression)


def check_operand(expression: Expression) -> None:
    """Refuse what could take any time where values are compared or given to functions. Raises PathError."""
    if isinstance(expression, ComparisonExpression):
        check_operand(expression.left)
        check_operand(expression.right)
    elif isinstance(expression, RootFilterQuery) and not expression.query.singular_query():
        raise PathError("`$` within a filter may be followed by names and indexes only, or it may take too long")
    elif isinstance(expression, FilterQuery):
        check_query(expression.query, within=True)
    elif isinstance(expression, FunctionExtension):
        for argument in expression.args:
            check_operand(argument)
        if expression.name in ("match", "search"):
            check_pattern(expression.args[1])


def check_pattern(argument: Expression) -> None:
    """Refuse a pattern that is not known, because the context would choose it, or that is no I-Regexp.

    Raises PathError.
    """
    if not isinstance(argument, StringLiteral):
        raise PathError("the pattern of match and search must be written in the path")
    try:
        compiled(argument.value)
    except ValueError as error:
        raise PathError(f"{argument} is no RFC 9485 regular expression") from error
