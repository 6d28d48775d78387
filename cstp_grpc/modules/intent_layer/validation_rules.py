"""The validation rules for nodes (stable names, default severities, remedies) and a project's own severities."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import yaml

from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.common.unicode_text import to_printable_line
from cstp_grpc.contract.enums import NodeRule, RuleSeverity
from cstp_grpc.contract.errors import InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer.model import FindingSeverity, ValidationFinding
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree

TARGET_TOKENS = 3_000
"""The size that nodes should keep to, as the protocol recommends."""
MAX_TOKENS = 4_000
"""The limit of a node's size, as the protocol sets it."""
RULES_FILE = ".intent-layer/config.yaml"
"""The file with the rule severities of a project."""
SHOWN_CHARACTERS = 200
"""Characters of a node's text that a message quotes at most."""


@dataclass(frozen=True, slots=True)
class ValidationRule:
    """A validation rule; `meaning` describes a breach, `remedy` its repair."""

    name: str
    severity: FindingSeverity
    meaning: str
    remedy: str

    def finding(self, file: str, line: int, message: str) -> ValidationFinding:
        """Return a finding of this rule; unprintable characters in the message are replaced."""
        return ValidationFinding(self.severity, self.name, file, line, to_printable_line(f"{message}; {self.remedy}"))


def quote_text(text: str) -> str:
    """Return a text in quotation marks, shortened."""
    return f"“{text if len(text) <= SHOWN_CHARACTERS else f'{text[:SHOWN_CHARACTERS]}…'}”"


ERROR, WARNING = FindingSeverity.ERROR, FindingSeverity.WARNING
INVALID_SETTINGS = ValidationRule(
    "invalid-settings",
    ERROR,
    f"`{RULES_FILE}` has an unknown rule or severity, or cannot be read; its settings for other rules apply.",
    "correct it",
)
RULES = (
    ValidationRule("missing-section", ERROR, "A node has no Purpose, Entry Points or Contracts.", "add the section"),
    ValidationRule("empty-section", WARNING, "A required section is empty, or contains only comments.", "fill it in"),
    ValidationRule(
        "duplicate-section",
        WARNING,
        "A file has two sections of the same name; they are read as one.",
        "put them together",
    ),
    ValidationRule(
        "over-budget",
        ERROR,
        f"The files of a node have more than {MAX_TOKENS} tokens.",
        "shorten it, or move what concerns a folder only to a node there",
    ),
    ValidationRule(
        "over-target",
        WARNING,
        f"The files of a node have more than {TARGET_TOKENS} tokens.",
        "shorten it, or move what concerns a folder only to a node there",
    ),
    ValidationRule("dead-downlink", ERROR, "Downlinks names a path that does not exist.", "correct or remove it"),
    ValidationRule(
        "downlink-without-node",
        WARNING,
        "Downlinks names a folder without a node.",
        "create the node, or remove the downlink",
    ),
    ValidationRule(
        "missing-downlink",
        WARNING,
        "The nearest node above a node does not list it, or its folder, in Downlinks.",
        "add it there",
    ),
    ValidationRule(
        "missing-entry-point",
        WARNING,
        "Entry Points links to, or names in inline code, a file or folder that exists neither below the node's folder "
        "nor below the project's root.",
        "correct or remove it",
    ),
    ValidationRule(
        "absolute-path",
        WARNING,
        "A link or inline code is an absolute path of one machine, such as `/home/…`, `~/…` or `C:\\…`.",
        "write it relative to the project",
    ),
    ValidationRule(
        "misplaced-claude-md", ERROR, "CLAUDE.md is below the root of the project.", "rename it to AGENTS.md"
    ),
    ValidationRule(
        "different-files",
        WARNING,
        "CLAUDE.md and AGENTS.md of one folder differ; both are read.",
        "keep one and make the other a link to it",
    ),
    ValidationRule(
        "dead-import",
        WARNING,
        "A line such as `@docs/rules.md` names a file that does not exist, is outside the project, is not text, or is "
        "too large.",
        "correct or remove it",
    ),
    ValidationRule("not-utf-8", ERROR, "A file of a node is not valid UTF-8.", "save it as UTF-8"),
    ValidationRule(
        "unreadable-file",
        ERROR,
        "A file of a node is too large, is not a regular file, is a link out of the project, or cannot be read.",
        "make it a file that can be read",
    ),
    ValidationRule(
        "unreadable-folder",
        WARNING,
        "A folder cannot be listed, so its nodes are not found.",
        "allow it to be read, or keep it out of the project",
    ),
    ValidationRule(
        "stale",
        WARNING,
        "Commits changed files that a node covers after the node itself.",
        "check whether the node is still correct",
    ),
    INVALID_SETTINGS,
)
"""All rules. All but `invalid-settings` are values of NodeRule."""
RULES_BY_NAME = {rule.name: rule for rule in RULES}


def make_finding(rule: NodeRule, file: str, line: int, message: str) -> ValidationFinding:
    return RULES_BY_NAME[rule].finding(file, line, message)


MAX_RULES_FILE_BYTES = 65_536
RULES_KEY = "rules"

RuleSeverities = Mapping[NodeRule, RuleSeverity]


def read_severities(tree: ProjectTree) -> tuple[dict[NodeRule, RuleSeverity], tuple[ValidationFinding, ...]]:
    """Return the severities that a project's file sets, and the findings about the file."""
    severities: dict[NodeRule, RuleSeverity] = {}
    findings: list[ValidationFinding] = []
    try:
        content = tree.read(tree.locate(RULES_FILE), MAX_RULES_FILE_BYTES)
        for key, value in _iter_rule_entries(
            # Composed to nodes, not constructed: nodes have lines for the findings, and `off` stays a word.
            yaml.compose(content.decode(), Loader=yaml.SafeLoader) if content else None
        ):
            severities[_parse_rule(key)] = _parse_severity(value)
    except _RulesFileError as problem:
        findings.append(INVALID_SETTINGS.finding(RULES_FILE, problem.line, str(problem)))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        findings.append(INVALID_SETTINGS.finding(RULES_FILE, line, "it is no YAML"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        findings.append(INVALID_SETTINGS.finding(RULES_FILE, 1, "it is no YAML"))
    except (InvalidArgument, Unavailable) as error:
        findings.append(INVALID_SETTINGS.finding(RULES_FILE, 1, error.message))
    return severities, tuple(findings)


def apply_severities(findings: Iterable[ValidationFinding], severities: RuleSeverities) -> Iterator[ValidationFinding]:
    """Yield findings with the configured severities, except for rules that are off."""
    by_name = {rule.value: severity for rule, severity in severities.items()}
    for finding in findings:
        severity = by_name.get(finding.rule)
        if severity is None:
            yield finding
        elif severity is not RuleSeverity.OFF:
            yield replace(finding, severity=FindingSeverity(severity.value))


class _RulesFileError(Exception):
    """An error in the rules file; `line` counts from 1."""

    def __init__(self, node: yaml.Node, message: str) -> None:
        super().__init__(message)
        self.line = node.start_mark.line + 1


def _iter_rule_entries(root: yaml.Node | None) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield the rules and severities as written; words such as `off` are plain strings."""
    for key, value in _mapping_entries(root):
        if _scalar_text(key) != RULES_KEY:
            raise _RulesFileError(key, f"there is no setting {quote_text(_scalar_text(key))}")
        yield from _mapping_entries(value)


def _mapping_entries(node: yaml.Node | None) -> list[tuple[yaml.Node, yaml.Node]]:
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        return []
    if not isinstance(node, yaml.MappingNode):
        raise _RulesFileError(node, "it must say `rules:` and, below, the rules with their severities")
    return list(node.value)


def _scalar_text(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _parse_rule(node: yaml.Node) -> NodeRule:
    try:
        return NodeRule(_scalar_text(node))
    except ValueError:
        raise _RulesFileError(node, f"there is no rule {quote_text(_scalar_text(node))}") from None


def _parse_severity(node: yaml.Node) -> RuleSeverity:
    try:
        return RuleSeverity(_scalar_text(node))
    except ValueError:
        words = ", ".join(RuleSeverity)
        raise _RulesFileError(node, f"{quote_text(_scalar_text(node))} is not a severity: {words}") from None
