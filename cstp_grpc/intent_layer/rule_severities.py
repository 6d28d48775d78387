"""How severe breaches of the rules for nodes are in a project, as its own file says."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import yaml

from cstp_grpc.errors import InvalidArgument, Unavailable
from cstp_grpc.intent_layer.model import Finding, FindingSeverity
from cstp_grpc.intent_layer.rules import INVALID_SETTINGS, RULES_FILE, quoted
from cstp_grpc.intent_layer.tree import Tree
from cstp_grpc.vocabulary import NodeRule, RuleSeverity

MAX_BYTES = 65_536
KEY = "rules"

Severities = Mapping[NodeRule, RuleSeverity]


def read_severities(tree: Tree) -> tuple[dict[NodeRule, RuleSeverity], tuple[Finding, ...]]:
    """Return the severities that a project's file sets, and what is wrong with the file."""
    severities: dict[NodeRule, RuleSeverity] = {}
    findings: list[Finding] = []
    try:
        content = tree.read(tree.locate(RULES_FILE), MAX_BYTES)
        for key, value in _entries(yaml.compose(content.decode(), Loader=yaml.SafeLoader) if content else None):
            severities[_rule(key)] = _severity(value)
    except _Problem as problem:
        findings.append(INVALID_SETTINGS.finding(RULES_FILE, problem.line, str(problem)))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        findings.append(INVALID_SETTINGS.finding(RULES_FILE, line, "it is no YAML"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError):
        findings.append(INVALID_SETTINGS.finding(RULES_FILE, 1, "it is no YAML"))
    except (InvalidArgument, Unavailable) as error:
        findings.append(INVALID_SETTINGS.finding(RULES_FILE, 1, error.message))
    return severities, tuple(findings)


def with_severities(findings: Iterable[Finding], severities: Severities) -> Iterator[Finding]:
    """Yield findings with the severities that are set for their rules, without those of rules that are off."""
    by_name = {rule.value: severity for rule, severity in severities.items()}
    for finding in findings:
        severity = by_name.get(finding.rule)
        if severity is None:
            yield finding
        elif severity is not RuleSeverity.OFF:
            yield replace(finding, severity=FindingSeverity(severity.value))


class _Problem(Exception):
    """Something wrong in the file; `line` counts from 1."""

    def __init__(self, node: yaml.Node, message: str) -> None:
        super().__init__(message)
        self.line = node.start_mark.line + 1


def _entries(root: yaml.Node | None) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Yield the rules and their severities as they are written: words such as `off` mean themselves."""
    for key, value in _mapping(root):
        if _text(key) != KEY:
            raise _Problem(key, f"there is no setting {quoted(_text(key))}")
        yield from _mapping(value)


def _mapping(node: yaml.Node | None) -> list[tuple[yaml.Node, yaml.Node]]:
    if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
        return []
    if not isinstance(node, yaml.MappingNode):
        raise _Problem(node, "it must say `rules:` and, below, the rules with their severities")
    return list(node.value)


def _text(node: yaml.Node) -> str:
    return str(node.value) if isinstance(node, yaml.ScalarNode) else ""


def _rule(node: yaml.Node) -> NodeRule:
    try:
        return NodeRule(_text(node))
    except ValueError:
        raise _Problem(node, f"there is no rule {quoted(_text(node))}") from None


def _severity(node: yaml.Node) -> RuleSeverity:
    try:
        return RuleSeverity(_text(node))
    except ValueError:
        words = ", ".join(RuleSeverity)
        raise _Problem(node, f"{quoted(_text(node))} is no severity: {words}") from None
