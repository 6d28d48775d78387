"""Load rulebooks: parse each file to rules, or to a list of all problems in it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cstp_grpc.enums import Enforcement, Permission, Severity, Stakes
from cstp_grpc.errors import InvalidArgument
from cstp_grpc.guardrails.cel_engine import MAX_EXPRESSION_CHARACTERS, CelEnvironment
from cstp_grpc.guardrails.cel_variables import (
    RESERVED_NAMES,
    RuleExpression,
    RuleExpressionError,
    parse_window_seconds,
)
from cstp_grpc.guardrails.input_names import find_spelling_clashes
from cstp_grpc.guardrails.input_values import (
    CONVERTERS,
    InputType,
    InputValueError,
    accept_values,
    check_context_bounds,
)
from cstp_grpc.guardrails.model import (
    NO_CODE,
    NO_INTENTS,
    UNDECLARED_INPUT_ID,
    UNKNOWN_ACTION_ID,
    Action,
    CodeFacts,
    Guardrail,
    InputDeclaration,
    IntentFacts,
    Rulebook,
    RulebookTest,
    RuleSet,
    TextTemplate,
)
from cstp_grpc.guardrails.rule_conditions import read_expiry, read_instant, read_match, read_scope
from cstp_grpc.guardrails.rulebook_files import (
    RulebookFile,
    default_rulebook_path,
    list_rulebook_files,
    read_rulebook_file,
)
from cstp_grpc.guardrails.text_templates import parse_template
from cstp_grpc.guardrails.yaml_document import YamlFields, mapping_entries, read_document
from cstp_grpc.yaml_with_lines import YamlNode

API_VERSION = "cstp.guardrails/v1"
# An identifier of CEL (language definition, section Syntax), with a bound on its length.
INPUT_NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
# In the place of an expression with problems, so that the rest of the file is still checked.
NO_EXPRESSION = RuleExpression("", "", "", frozenset(), frozenset())
ALWAYS = RuleExpression("true", "true", "true", frozenset(), frozenset())
"""The expression of a guardrail that only has `match`."""
RESERVED_IDS = frozenset({UNDECLARED_INPUT_ID, UNKNOWN_ACTION_ID})
"""The ids under which the server itself reports what an action leaves unknown."""
ACTION_OPTIONS = (
    "category",
    "stakes",
    "confidence",
    "context",
    "code",
    "related_intents",
    "project",
    "agent",
    "permissions",
    "now",
    "announced_context",
)
MAX_ANNOUNCED_CONTEXT = 20_000
"""As long as the context of an announcement may be."""
RULE_OPTIONS = (
    "when",
    "match",
    "scope",
    "enforcement",
    "expires",
    "owner",
    "tags",
    "suggestion",
    "description",
)


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

    rulebook: Rulebook | None = None
    inputs: dict[str, InputDeclaration] = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    problems: list[RulebookProblem] = field(default_factory=list)


def parse_rulebook(file: str, content: bytes) -> RulebookParseResult:
    """Parse a rulebook, or collect all problems in it."""
    parser = RulebookParser(file)
    document = read_document(content, lambda line, reason: parser.report(line, "rulebook", reason))
    if document is not None:
        rulebook = parser.rulebook(document, hashlib.sha256(content).hexdigest())
        parser.parsed.rulebook = None if parser.parsed.problems else rulebook
    return parser.parsed


class RulebookParser:
    """Parses the parts of one rulebook."""

    def __init__(self, file: str) -> None:
        self.parsed = RulebookParseResult()
        self._file = file
        self._types: dict[str, InputType | None] = {}

    def report(self, line: int, where: str, reason: str) -> None:
        """Add a problem."""
        self.parsed.problems.append(RulebookProblem(self._file, line, where, reason))

    def rulebook(self, node: YamlNode, digest: str) -> Rulebook:
        """Parse the whole document."""
        fields = YamlFields(
            node, "rulebook", self.report, ["apiVersion", "metadata", "guardrails"], ["inputs", "tests"]
        )
        if fields.text("apiVersion") not in ("", API_VERSION):
            fields.report_problem(f"`apiVersion` must be {API_VERSION}", "apiVersion")
        metadata = YamlFields(
            fields.get("metadata") or YamlNode(node.line, {}),
            "metadata",
            self.report,
            ["name", "version"],
            ["owner"],
        )
        inputs = fields.get("inputs")
        for name, declaration in (mapping_entries(inputs, "inputs", self.report) if inputs else {}).items():
            self._input(name, declaration)
        guardrails = fields.items("guardrails")
        if (given := fields.get("guardrails")) and given.value == []:
            fields.report_problem("`guardrails` must hold at least one", "guardrails")
        # After all inputs, since the expressions are checked against their types.
        environment = CelEnvironment(self._types)
        return Rulebook(
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
        )

    def _input(self, name: str, node: YamlNode) -> None:
        where, before = f"inputs.{name}", len(self.parsed.problems)
        if not INPUT_NAME_PATTERN.fullmatch(name) or name in RESERVED_NAMES:
            self.report(node.line, where, "is not a name that an expression can read")
            return
        fields = YamlFields(node, where, self.report, ["type"], ["default", "description", "required", "values"])
        declared = fields.enum_word("type", InputType)
        default = given.plain if (given := fields.get("default")) else None
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
                fields.report_problem(f"the default {invalid_value_reason(error)}", "default")
        description = fields.optional_text("description")
        sound = len(self.parsed.problems) == before
        # None makes it known but not type-checked: rules that read it are not reported for a fault of its declaration.
        self._types[name] = declared if sound else None
        if sound:
            self.parsed.inputs[name] = InputDeclaration(
                name, declared, default, description, node.line, is_required, values
            )

    def _guardrail(self, node: YamlNode, where: str, environment: CelEnvironment) -> Guardrail:
        fields = YamlFields(
            node, self._named(node, "id", where), self.report, ["id", "name", "severity", "message"], RULE_OPTIONS
        )
        identifier = fields.identifier("id")
        if identifier in self.parsed.ids:
            fields.report_problem(f"the id is used twice; the first is on line {self.parsed.ids[identifier]}", "id")
        elif identifier in RESERVED_IDS:
            fields.report_problem(f"the id {identifier} is the server's own", "id")
        elif identifier:
            self.parsed.ids[identifier] = node.line
        message, suggestion = fields.text("message"), fields.optional_text("suggestion")
        return Guardrail(
            id=identifier,
            name=fields.text("name"),
            when=self._expression(fields, environment),
            severity=fields.enum_word("severity", Severity),
            message=message,
            suggestion=suggestion,
            description=fields.optional_text("description"),
            line=node.line,
            match=read_match(fields, self.report),
            scope=read_scope(fields, self.report),
            enforcement=fields.enum_word("enforcement", Enforcement, Enforcement.ENFORCE),
            expires=read_expiry(fields),
            owner=fields.optional_text("owner"),
            tags=fields.identifiers("tags"),
            message_template=self._template(fields, "message", message, environment),
            suggestion_template=self._template(fields, "suggestion", suggestion, environment),
        )

    def _template(
        self, fields: YamlFields, key: str, text: str | None, environment: CelEnvironment
    ) -> TextTemplate | None:
        try:
            return parse_template(text, environment)
        except RuleExpressionError as error:
            fields.report_problem(f"`{key}` {error}", key)
            return None

    def _expression(self, fields: YamlFields, environment: CelEnvironment) -> RuleExpression:
        source = fields.text("when", MAX_EXPRESSION_CHARACTERS)
        if fields.get("when") is None:
            if fields.get("match") is None:
                fields.report_problem("`when` is missing; it may be left out beside `match`")
            return ALWAYS
        if not source:
            return NO_EXPRESSION
        try:
            expression = environment.parse_condition(source)
        except RuleExpressionError as error:
            fields.report_problem(f"`when` {error}", "when")
            return NO_EXPRESSION
        for name in sorted(expression.presences):
            declared = self.parsed.inputs.get(name.removeprefix("context."))
            if declared and (declared.default is not None or declared.is_required):
                why = "is required" if declared.is_required else "has a default"
                fields.report_problem(f"`when` asks has({name}), which is always true, because the input {why}", "when")
        return expression

    def _test(self, node: YamlNode, where: str) -> RulebookTest:
        where = self._named(node, "name", where)
        fields = YamlFields(
            node,
            where,
            self.report,
            ["name", "action", "expect"],
            ["expect_errors", "expect_allowed", "expect_approval"],
        )
        return RulebookTest(
            name=fields.text("name"),
            action=self._action(fields.get("action") or YamlNode(node.line, None), where),
            expect=self._expected(fields, "expect"),
            expect_errors=self._expected(fields, "expect_errors"),
            expect_allowed=fields.boolean("expect_allowed"),
            line=node.line,
            expect_approval=fields.boolean("expect_approval"),
        )

    def _expected(self, fields: YamlFields, key: str) -> frozenset[str]:
        found = fields.texts(key)
        for line, identifier in found:
            if identifier not in self.parsed.ids:
                self.report(line, fields.where, f"`{key}` names {identifier}, which is no guardrail of this rulebook")
        return frozenset(identifier for _, identifier in found)

    def _action(self, node: YamlNode, where: str) -> Action:
        # It is missing, which is reported already.
        if node.value is None:
            return Action("", intents=NO_INTENTS)
        fields = YamlFields(node, where, self.report, ["description"], ACTION_OPTIONS)
        confidence = fields.number("confidence")
        if confidence is not None and not 0 <= confidence <= 1:
            fields.report_problem("`confidence` must be from 0 to 1", "confidence")
        return Action(
            description=fields.text("description"),
            category=fields.optional_text("category"),
            stakes=fields.enum_word("stakes", Stakes, Stakes.MEDIUM),
            confidence=confidence,
            context=self._context(fields),
            code=self._code(fields),
            intents=self._intents(fields),
            project=fields.optional_text("project"),
            agent=fields.optional_text("agent") or "",
            permissions=read_permissions(fields),
            now=read_instant(fields, "now"),
            announced_context=fields.optional_text("announced_context", MAX_ANNOUNCED_CONTEXT) or "",
        )

    def _code(self, fields: YamlFields) -> CodeFacts:
        node = fields.get("code")
        if node is None:
            return NO_CODE
        code = YamlFields(
            node, fields.where, self.report, [], ["paths", "boundaries", "checks", "pitfalls", "unreadable"]
        )
        boundaries = YamlFields(
            code.get("boundaries") or YamlNode(node.line, {}),
            fields.where,
            self.report,
            [],
            ["never", "ask_first", "always"],
        )
        return CodeFacts(
            paths=read_texts(code, "paths"),
            never=read_texts(boundaries, "never"),
            ask_first=read_texts(boundaries, "ask_first"),
            always=read_texts(boundaries, "always"),
            checks=read_texts(code, "checks"),
            pitfalls=read_texts(code, "pitfalls"),
            unreadable=code.optional_text("unreadable"),
        )

    def _intents(self, fields: YamlFields) -> IntentFacts:
        ages = []
        for line, text in fields.texts("related_intents"):
            try:
                ages.append(float(parse_window_seconds(text)))
            except ValueError as error:
                self.report(line, fields.where, f"`related_intents` holds {text}, but a time {error}")
        return IntentFacts(tuple(ages))

    def _context(self, fields: YamlFields) -> Mapping[str, object]:
        node = fields.get("context")
        if node is None:
            return {}
        found = mapping_entries(node, fields.where, self.report)
        context: dict[str, object] = {key: item.plain for key, item in found.items()}
        try:
            check_context_bounds(context)
        except InvalidArgument as error:
            fields.report_problem(f"`context` {invalid_value_reason(error)}", "context")
        return context

    def _named(self, node: YamlNode, key: str, otherwise: str) -> str:
        """Return the name of a guardrail or test for its problems."""
        named = node.value.get(key) if isinstance(node.value, dict) else None
        return named.value if named and isinstance(named.value, str) and named.value else otherwise


def read_accepted_values(fields: YamlFields, declared: InputType) -> tuple[str, ...]:
    """Return the texts that an input may be; empty for all."""
    values = tuple(text for _, text in fields.texts("values"))
    if (given := fields.get("values")) is None:
        return ()
    if declared not in (InputType.STRING, InputType.LIST):
        fields.report_problem(f"`values` are for the types string and list, not {declared}", "values")
    if given.value == [] or len(set(values)) < len(values):
        fields.report_problem("`values` must hold at least one text, and each once", "values")
    return values


def read_permissions(fields: YamlFields) -> frozenset[str]:
    """Return what the agent of a test may do."""
    found = frozenset(text for _, text in fields.texts("permissions"))
    for word in sorted(found.difference(Permission)):
        fields.report_problem(f"`permissions` must be of {', '.join(Permission)}, not {word}", "permissions")
    return found


def read_texts(fields: YamlFields, key: str) -> tuple[str, ...]:
    """Return the strings of a list."""
    return tuple(text for _, text in fields.texts(key))


def invalid_value_reason(error: InputValueError | InvalidArgument) -> str:
    """Return the reason of an error without the field's name."""
    return error.violations[0].description if isinstance(error, InvalidArgument) else str(error)


__all__ = [
    "Guardrail",
    "InputDeclaration",
    "RuleSet",
    "Rulebook",
    "RulebookError",
    "RulebookProblem",
    "default_rulebook_path",
    "load_rule_set",
]


class RulebookError(Exception):
    """Rulebooks are invalid; `problems` lists every problem, and the message has a line for each."""

    def __init__(self, problems: Iterable[RulebookProblem]) -> None:
        self.problems: Sequence[RulebookProblem] = sorted(problems)
        super().__init__("\n".join(map(str, self.problems)))


def load_rule_set(path: Path, files: Sequence[RulebookFile] | None = None) -> RuleSet:
    """Load a rulebook, or every *.yaml and *.yml in a folder in name order; all of them or none.

    Hidden files and subfolders are skipped. If `files` is given, it is used instead of reading the folder. Raises
    RulebookError.
    """
    found = find_rulebook_files(path) if files is None else files
    if not found:
        raise RulebookError([RulebookProblem(str(path), 1, "rulebook", "the folder holds no *.yaml or *.yml")])
    parsed = [parse_rulebook_file(file) for file in found]
    paths = [file if isinstance(file, Path) else file.path for file in found]
    problems = [problem for one in parsed for problem in one.problems]
    # A verdict names a guardrail by its id alone, and a call has one context for the inputs of all files.
    problems += find_id_clashes(paths, parsed)
    problems += find_input_clashes(paths, parsed)
    if problems:
        raise RulebookError(problems)
    return RuleSet(tuple(one.rulebook for one in parsed if one.rulebook))


def find_rulebook_files(path: Path) -> list[Path]:
    """Return the rulebook files, by name. Raises RulebookError."""
    try:
        return list_rulebook_files(path)
    except OSError as error:
        raise RulebookError([RulebookProblem(str(path), 1, "rulebook", f"cannot be read: {error.strerror}")]) from error


def parse_rulebook_file(file: Path | RulebookFile) -> RulebookParseResult:
    """Parse a file, reading it first if only its path is given."""
    try:
        found = read_rulebook_file(file) if isinstance(file, Path) else file
    except OSError as error:
        return RulebookParseResult(
            problems=[RulebookProblem(str(file), 1, "rulebook", f"cannot be read: {error.strerror}")]
        )
    return parse_rulebook(str(found.path), found.content)


def find_id_clashes(files: Sequence[Path], parsed: Sequence[RulebookParseResult]) -> Iterator[RulebookProblem]:
    """Yield a problem for each guardrail id that another file has already."""
    seen: dict[str, str] = {}
    for file, one in zip(files, parsed, strict=True):
        for identifier, line in one.ids.items():
            if identifier in seen:
                yield RulebookProblem(str(file), line, identifier, f"the id is used already, in {seen[identifier]}")
            else:
                seen[identifier] = f"{file}:{line}"


def find_input_clashes(files: Sequence[Path], parsed: Sequence[RulebookParseResult]) -> Iterator[RulebookProblem]:
    """Yield a problem for each input that another file declares differently."""
    seen: dict[str, tuple[Path, InputDeclaration]] = {}
    for file, one in zip(files, parsed, strict=True):
        for name, declared in one.inputs.items():
            first_file, first = seen.setdefault(name, (file, declared))
            if input_signature(first) != input_signature(declared):
                reason = (
                    f"differs from its declaration in {first_file}:{first.line} in type, default, required or values"
                )
                yield RulebookProblem(str(file), declared.line, f"inputs.{name}", reason)
    for name, other in find_spelling_clashes(seen):
        file, declared = seen[name]
        first_file, first = seen[other]
        reason = f"cannot be told from {other} in {first_file}:{first.line}: snake case and camel case are one name"
        yield RulebookProblem(str(file), declared.line, f"inputs.{name}", reason)


def input_signature(declared: InputDeclaration) -> tuple[str, str]:
    """Return what declarations of an input must share; as JSON text, because Python considers 1 and True equal."""
    return declared.type, json.dumps([declared.default, declared.is_required, declared.values], sort_keys=True)
