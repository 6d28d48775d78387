"""A rulebook file: from YAML to rules, or to all that is wrong in it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from cstp_grpc.errors import InvalidArgument
from cstp_grpc.guardrails.document import Node, read_document
from cstp_grpc.guardrails.expression import MAX_LENGTH, Environment
from cstp_grpc.guardrails.fields import Fields, entries
from cstp_grpc.guardrails.model import NO_CODE, Action, CodeRules
from cstp_grpc.guardrails.ruleset import Guardrail, Input, Rulebook, RulebookTest
from cstp_grpc.guardrails.scanner import RESERVED, Expression, ExpressionError
from cstp_grpc.guardrails.values import CONVERTERS, InputType, Unusable, check_bounds
from cstp_grpc.vocabulary import Severity, Stakes

API_VERSION = "cstp.guardrails/v1"
INPUT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
NO_EXPRESSION = Expression("", "", frozenset(), frozenset())


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """Something wrong in a rulebook; `where` is the guardrail's identifier, or the part of the file."""

    file: str
    line: int
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.where}: {self.reason}"


@dataclass(slots=True)
class Parsed:
    """What was found in a file; `rulebook` is None where there are problems, `ids` are the lines of the guardrails."""

    rulebook: Rulebook | None = None
    inputs: dict[str, Input] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def parse(file: str, content: bytes) -> Parsed:
    """Return the rulebook in a file, or all that is wrong with it."""
    parser = Parser(file)
    document = read_document(content, lambda line, reason: parser.report(line, "rulebook", reason))
    if document is not None:
        rulebook = parser.rulebook(document, hashlib.sha256(content).hexdigest())
        parser.parsed.rulebook = None if parser.parsed.problems else rulebook
    return parser.parsed


class Parser:
    """Reads the parts of one rulebook."""

    def __init__(self, file: str) -> None:
        self.parsed = Parsed()
        self._file = file
        self._types: dict[str, InputType | None] = {}

    def report(self, line: int, where: str, reason: str) -> None:
        """Take down a problem."""
        self.parsed.problems.append(Problem(self._file, line, where, reason))

    def rulebook(self, node: Node, digest: str) -> Rulebook:
        """Read the whole document."""
        fields = Fields(node, "rulebook", self.report, ["apiVersion", "metadata", "guardrails"], ["inputs", "tests"])
        if fields.text("apiVersion") not in ("", API_VERSION):
            fields.wrong(f"`apiVersion` must be {API_VERSION}", "apiVersion")
        metadata = Fields(
            fields.get("metadata") or Node(node.line, {}), "metadata", self.report, ["name", "version"], ["owner"]
        )
        inputs = fields.get("inputs")
        for name, declaration in (entries(inputs, "inputs", self.report) if inputs else {}).items():
            self._input(name, declaration)
        guardrails = fields.items("guardrails")
        if (given := fields.get("guardrails")) and given.value == []:
            fields.wrong("`guardrails` must hold at least one", "guardrails")
        environment = Environment(self._types)
        return Rulebook(
            file=self._file,
            name=metadata.identifier("name"),
            version=metadata.identifier("version"),
            owner=metadata.maybe_text("owner"),
            inputs=self.parsed.inputs,
            guardrails=tuple(
                self._guardrail(item, f"guardrails[{position}]", environment)
                for position, item in enumerate(guardrails)
            ),
            tests=tuple(self._test(item, f"tests[{position}]") for position, item in enumerate(fields.items("tests"))),
            digest=digest,
        )

    def _input(self, name: str, node: Node) -> None:
        where, before = f"inputs.{name}", len(self.parsed.problems)
        if not INPUT_NAME.fullmatch(name) or name in RESERVED:
            self.report(node.line, where, "is not a name that an expression can read")
            return
        fields = Fields(node, where, self.report, ["type"], ["default", "description"])
        declared = fields.word("type", InputType)
        default = given.plain() if (given := fields.get("default")) else None
        if default is not None and len(self.parsed.problems) == before:
            try:
                check_bounds({name: default})
                CONVERTERS[declared](default)
            except (Unusable, InvalidArgument) as error:
                fields.wrong(f"the default {reason_of(error)}", "default")
        description = fields.maybe_text("description")
        sound = len(self.parsed.problems) == before
        self._types[name] = declared if sound else None
        if sound:
            self.parsed.inputs[name] = Input(name, declared, default, description, node.line)

    def _guardrail(self, node: Node, where: str, environment: Environment) -> Guardrail:
        required = ["id", "name", "when", "severity", "message"]
        fields = Fields(node, self._named(node, "id", where), self.report, required, ["suggestion", "description"])
        identifier = fields.identifier("id")
        if identifier in self.parsed.ids:
            fields.wrong(f"the id is used twice; the first is on line {self.parsed.ids[identifier]}", "id")
        elif identifier:
            self.parsed.ids[identifier] = node.line
        return Guardrail(
            id=identifier,
            name=fields.text("name"),
            when=self._expression(fields, environment),
            severity=fields.word("severity", Severity),
            message=fields.text("message"),
            suggestion=fields.maybe_text("suggestion"),
            description=fields.maybe_text("description"),
            line=node.line,
        )

    def _expression(self, fields: Fields, environment: Environment) -> Expression:
        source = fields.text("when", MAX_LENGTH)
        if not source:
            return NO_EXPRESSION
        try:
            expression = environment.parse(source)
        except ExpressionError as error:
            fields.wrong(f"`when` {error}", "when")
            return NO_EXPRESSION
        for name in sorted(expression.presences):
            declared = self.parsed.inputs.get(name.removeprefix("context."))
            if declared and declared.default is not None:
                fields.wrong(f"`when` asks has({name}), which is always true, because the input has a default", "when")
        return expression

    def _test(self, node: Node, where: str) -> RulebookTest:
        where = self._named(node, "name", where)
        fields = Fields(node, where, self.report, ["name", "action", "expect"], ["expect_errors", "expect_allowed"])
        return RulebookTest(
            name=fields.text("name"),
            action=self._action(fields.get("action") or Node(node.line, None), where),
            expect=self._expected(fields, "expect"),
            expect_errors=self._expected(fields, "expect_errors"),
            expect_allowed=fields.boolean("expect_allowed"),
            line=node.line,
        )

    def _expected(self, fields: Fields, key: str) -> frozenset[str]:
        found = fields.texts(key)
        for line, identifier in found:
            if identifier not in self.parsed.ids:
                self.report(line, fields.where, f"`{key}` names {identifier}, which is no guardrail of this rulebook")
        return frozenset(identifier for _, identifier in found)

    def _action(self, node: Node, where: str) -> Action:
        if node.value is None:
            return Action("")
        optional = ["category", "stakes", "confidence", "context", "code"]
        fields = Fields(node, where, self.report, ["description"], optional)
        confidence = fields.number("confidence")
        if confidence is not None and not 0 <= confidence <= 1:
            fields.wrong("`confidence` must be from 0 to 1", "confidence")
        return Action(
            description=fields.text("description"),
            category=fields.maybe_text("category"),
            stakes=fields.word("stakes", Stakes, Stakes.MEDIUM),
            confidence=confidence,
            context=self._context(fields),
            code=self._code(fields),
        )

    def _code(self, fields: Fields) -> CodeRules:
        node = fields.get("code")
        if node is None:
            return NO_CODE
        code = Fields(node, fields.where, self.report, [], ["paths", "boundaries", "checks", "pitfalls", "unreadable"])
        boundaries = Fields(
            code.get("boundaries") or Node(node.line, {}),
            fields.where,
            self.report,
            [],
            ["never", "ask_first", "always"],
        )
        return CodeRules(
            paths=texts(code, "paths"),
            never=texts(boundaries, "never"),
            ask_first=texts(boundaries, "ask_first"),
            always=texts(boundaries, "always"),
            checks=texts(code, "checks"),
            pitfalls=texts(code, "pitfalls"),
            unreadable=code.maybe_text("unreadable"),
        )

    def _context(self, fields: Fields) -> Mapping[str, object]:
        node = fields.get("context")
        if node is None:
            return {}
        found = entries(node, fields.where, self.report)
        context: dict[str, object] = {key: item.plain() for key, item in found.items()}
        try:
            check_bounds(context)
        except InvalidArgument as error:
            fields.wrong(f"`context` {reason_of(error)}", "context")
        return context

    def _named(self, node: Node, key: str, otherwise: str) -> str:
        """Return how problems of a guardrail or test name it."""
        named = node.value.get(key) if isinstance(node.value, dict) else None
        return named.value if named and isinstance(named.value, str) and named.value else otherwise


def texts(fields: Fields, key: str) -> tuple[str, ...]:
    """Return the texts in a list."""
    return tuple(text for _, text in fields.texts(key))


def reason_of(error: Unusable | InvalidArgument) -> str:
    """Return what is wrong, without the name of the field."""
    return error.violations[0].description if isinstance(error, InvalidArgument) else str(error)
