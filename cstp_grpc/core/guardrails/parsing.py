"""Parse a rulebook: to its rules, or to a list of all problems in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from cstp_grpc.common.unicode_text import fold_name
from cstp_grpc.common.yaml_with_lines import YamlNode
from cstp_grpc.contract.enums import Enforcement, Severity
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.guardrails import model, section_parsing
from cstp_grpc.core.guardrails import rulebook_schema as schema
from cstp_grpc.core.guardrails.cel_engine import MAX_EXPRESSION_CHARACTERS, CelEnvironment, environment_for
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError
from cstp_grpc.core.guardrails.cel_variables import RESERVED_NAMES, RuleExpression
from cstp_grpc.core.guardrails.inputs import CONVERTERS, InputType, InputValueError, accept_values, check_context_bounds
from cstp_grpc.core.guardrails.text_templates import parse_template
from cstp_grpc.core.guardrails.yaml_document import YamlFields, read_document

# In the place of an expression with problems, so that the rest of the file is still checked.
NO_EXPRESSION = RuleExpression("", "", "", frozenset(), frozenset())
ALWAYS = RuleExpression("true", "true", "true", frozenset(), frozenset())
"""The expression of a guardrail that only has `match`."""
RESERVED_IDS = frozenset({model.UNDECLARED_INPUT_ID, model.UNKNOWN_ACTION_ID})
"""The ids under which the server itself reports unknown inputs of an action."""


@dataclass(frozen=True, slots=True, order=True)
class RulebookProblem:
    """A problem in a rulebook; `where` is the guardrail's id, or the part of the file."""

    file: str
    line: int
    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.where}: {self.reason}"


@dataclass(slots=True)
class RulebookParseResult:
    """The result of parsing a file; `rulebook` is None if there are problems, `ids` maps guardrails to lines."""

    rulebook: model.ParsedRulebook | None = None
    inputs: dict[str, model.InputDeclaration] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    problems: list[RulebookProblem] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class InheritedParts:
    """Parts of the rulebooks that a rulebook extends: inputs for its rules, and guardrails for its tests."""

    inputs: Mapping[str, model.InputDeclaration] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()
    rulebooks: tuple[model.ParsedRulebook, ...] = ()


NOTHING_INHERITED = InheritedParts()


def parse_rulebook(
    file: str,
    content: bytes,
    arguments: Mapping[str, object] = MappingProxyType({}),
    inherited: InheritedParts = NOTHING_INHERITED,
) -> RulebookParseResult:
    """Parse a rulebook, or collect all problems in it; `arguments` are the values that are given to its parameters."""
    parser = RulebookParser(file, arguments, inherited)
    document = read_document(content, lambda line, reason: parser.report(line, "rulebook", reason))
    if document is not None:
        rulebook = parser.rulebook(document, hashlib.sha256(content).hexdigest())
        parser.parsed.rulebook = None if parser.parsed.problems else rulebook
    return parser.parsed


class RulebookParser:
    """Parses the parts of one rulebook."""

    def __init__(self, file: str, arguments: Mapping[str, object], inherited: InheritedParts) -> None:
        self.parsed = RulebookParseResult()
        self._file = file
        self._arguments = arguments
        self._inherited = inherited
        self._types: dict[str, InputType | None] = {name: each.type for name, each in inherited.inputs.items()}

    def report(self, line: int, where: str, reason: str) -> None:
        self.parsed.problems.append(RulebookProblem(self._file, line, where, reason))

    def rulebook(self, node: YamlNode, digest: str) -> model.ParsedRulebook:
        """Parse the whole document."""
        fields = YamlFields(node, "rulebook", self.report, *schema.RULEBOOK.keys)
        if fields.text("apiVersion") not in ("", schema.API_VERSION):
            fields.report_problem(f"`apiVersion` must be {schema.API_VERSION}", "apiVersion")
        metadata = YamlFields(
            fields.get("metadata") or YamlNode(node.line, {}), "metadata", self.report, *schema.METADATA.keys
        )
        for name, declaration in fields.entries("inputs", "inputs").items():
            self._input(name, declaration)
        guardrails = fields.items("guardrails")
        if (given := fields.get("guardrails")) and given.value == [] and not fields.items("extends"):
            fields.report_problem("`guardrails` must contain at least one, or `extends` name rulebooks", "guardrails")
        categories = read_categories(fields)
        parameters = section_parsing.read_parameters(fields, self._arguments, self.report)
        # After all inputs, since the expressions are checked against their types.
        environment = environment_for(self._types, parameters)
        parsed = model.ParsedRulebook(
            file=self._file,
            name=metadata.identifier("name"),
            version=metadata.identifier("version"),
            owner=metadata.optional_text("owner"),
            inputs=self.parsed.inputs,
            guardrails=tuple(
                self._guardrail(item, f"guardrails[{position}]", environment)
                for position, item in enumerate(guardrails)
            ),
            # After the guardrails, whose ids the tests name.
            tests=tuple(self._test(item, f"tests[{position}]") for position, item in enumerate(fields.items("tests"))),
            digest=digest,
            extended=self._inherited.rulebooks,
            categories=categories,
        )
        if categories:
            self._check_categories(parsed)
        return parsed

    def _check_categories(self, parsed: model.ParsedRulebook) -> None:
        """Report matched categories that neither the rulebook nor one that it extends declares."""
        declared = model.RuleSet((parsed, *parsed.extended)).categories
        for rule in parsed.guardrails:
            for name in sorted(rule.match.categories):
                if fold_name(name) not in declared:
                    self.report(rule.line, rule.id, f"`match` names the category {name}, which `categories` lacks")

    def _input(self, name: str, node: YamlNode) -> None:
        where, before = f"inputs.{name}", len(self.parsed.problems)
        if not schema.INPUT_NAME_PATTERN.fullmatch(name) or name in RESERVED_NAMES:
            self.report(node.line, where, "is not a name that an expression can read")
            return
        fields = YamlFields(node, where, self.report, *schema.INPUT.keys)
        declared = fields.enum_word("type", InputType)
        default = fields.plain("default")
        values = read_accepted_values(fields, declared)
        is_required = fields.boolean("required") or False
        if is_required and default is not None:
            fields.report_problem("an input is required or has a default, not both", "required")
        if default is not None and len(self.parsed.problems) == before:
            convert = CONVERTERS[declared]
            try:
                check_context_bounds({name: default})
                (accept_values(convert, values) if values else convert)(default)
            except (InputValueError, InvalidArgument) as error:
                fields.report_problem(f"the default {section_parsing.invalid_value_reason(error)}", "default")
        description = fields.optional_text("description")
        sound = len(self.parsed.problems) == before
        # None makes it known but not type-checked: rules that read it are not reported for a fault of its declaration.
        self._types[name] = declared if sound else None
        if sound:
            self.parsed.inputs[name] = model.InputDeclaration(
                name, declared, default, description, node.line, is_required, values
            )

    def _guardrail(self, node: YamlNode, where: str, environment: CelEnvironment) -> model.Guardrail:
        fields = YamlFields(node, self._named(node, "id", where), self.report, *schema.GUARDRAIL.keys)
        identifier = fields.identifier("id")
        if identifier in self.parsed.ids:
            fields.report_problem(f"the id is used twice; the first is on line {self.parsed.ids[identifier]}", "id")
        elif identifier in RESERVED_IDS:
            fields.report_problem(f"the id {identifier} is the server's own", "id")
        elif identifier:
            self.parsed.ids[identifier] = node.line
        message, suggestion = fields.text("message"), fields.optional_text("suggestion")
        return model.Guardrail(
            id=identifier,
            name=fields.text("name"),
            when=self._expression(fields, environment),
            severity=fields.enum_word("severity", Severity),
            message=message,
            suggestion=suggestion,
            description=fields.optional_text("description"),
            line=node.line,
            match=section_parsing.read_match(fields),
            scope=section_parsing.read_scope(fields),
            enforcement=fields.enum_word("enforcement", Enforcement, Enforcement.ENFORCE),
            expires=section_parsing.read_expiry(fields),
            owner=fields.optional_text("owner"),
            tags=fields.identifiers("tags"),
            approvers=section_parsing.read_approvers(fields),
            message_template=self._template(fields, "message", message, environment),
            suggestion_template=self._template(fields, "suggestion", suggestion, environment),
        )

    def _template(
        self, fields: YamlFields, key: str, text: str | None, environment: CelEnvironment
    ) -> model.TextTemplate | None:
        try:
            return parse_template(text, environment)
        except RuleExpressionError as error:
            fields.report_problem(f"`{key}` {error}", key)
            return None

    def _expression(self, fields: YamlFields, environment: CelEnvironment) -> RuleExpression:
        source = fields.text("when", MAX_EXPRESSION_CHARACTERS)
        if fields.get("when") is None:
            if fields.get("match") is None:
                fields.report_problem("`when` is missing; it is optional only with `match`")
            return ALWAYS
        if not source:
            return NO_EXPRESSION
        try:
            expression = environment.parse_condition(source)
        except RuleExpressionError as error:
            fields.report_problem(f"`when` {error}", "when")
            return NO_EXPRESSION
        for name in sorted(expression.presences):
            key = name.removeprefix("context.")
            declared = self.parsed.inputs.get(key) or self._inherited.inputs.get(key)
            if declared and (declared.default is not None or declared.is_required):
                why = "is required" if declared.is_required else "has a default"
                fields.report_problem(f"`when` asks has({name}), which is always true, because the input {why}", "when")
        return expression

    def _test(self, node: YamlNode, where: str) -> model.RulebookTest:
        where = self._named(node, "name", where)
        fields = YamlFields(node, where, self.report, *schema.TEST.keys)
        return model.RulebookTest(
            name=fields.text("name"),
            action=section_parsing.read_test_action(
                fields.get("action") or YamlNode(node.line, None), where, self.report
            ),
            expect=self._expected(fields, "expect"),
            expect_errors=self._expected(fields, "expect_errors"),
            expect_allowed=fields.boolean("expect_allowed"),
            line=node.line,
            expect_approval=fields.boolean("expect_approval"),
        )

    def _expected(self, fields: YamlFields, key: str) -> frozenset[str]:
        found = fields.lined_texts(key)
        for line, identifier in found:
            if identifier not in self.parsed.ids and identifier not in self._inherited.ids:
                self.report(line, fields.where, f"`{key}` names {identifier}, but this rulebook has no such guardrail")
        return frozenset(identifier for _, identifier in found)

    def _named(self, node: YamlNode, key: str, otherwise: str) -> str:
        named = node.value.get(key) if isinstance(node.value, dict) else None
        return named.value if named and isinstance(named.value, str) and named.value else otherwise


def read_categories(fields: YamlFields) -> tuple[str, ...]:
    names = tuple(name.strip() for name in fields.texts("categories"))
    if not all(0 < len(name) <= schema.MAX_CATEGORY_CHARACTERS for name in names):
        fields.report_problem(f"a category must have 1 to {schema.MAX_CATEGORY_CHARACTERS} characters", "categories")
    if len(set(map(fold_name, names))) < len(names):
        fields.report_problem("`categories` must name each category once", "categories")
    return names


def read_accepted_values(fields: YamlFields, declared: InputType) -> tuple[str, ...]:
    values = fields.texts("values")
    if (given := fields.get("values")) is None:
        return ()
    if declared not in (InputType.STRING, InputType.LIST):
        fields.report_problem(f"`values` are for the types string and list, not {declared}", "values")
    if given.value == [] or len(set(values)) < len(values):
        fields.report_problem("`values` must contain at least one text, and each only once", "values")
    return values
