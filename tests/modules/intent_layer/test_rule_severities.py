"""A project says how severe its rules are; what is wrong with its file is told, and loosens nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cstp_grpc.contract.enums import NodeRule, RuleSeverity
from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.modules.intent_layer.model import FindingSeverity
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.modules.intent_layer.validation import select_nodes, validate_selected
from cstp_grpc.modules.intent_layer.validation_rules import INVALID_SETTINGS, RULES, RULES_FILE
from cstp_grpc.platform import config
from tests.harness import TOKENS, GrpcCaller, running
from tests.harness import settings as server_settings
from tests.modules.intent_layer.trees import write_tree

NODE = "## Purpose\n\nSells.\n\n## Contracts\n\nNone.\n"


def severities(root: Path, text: str, given: dict[NodeRule, RuleSeverity] | None = None) -> list[tuple[str, str, int]]:
    tree = ProjectTree(write_tree(root, {"AGENTS.md": NODE, RULES_FILE: text}))
    return [
        (each.rule, each.severity, each.line) for each in validate_selected(tree, select_nodes(tree), None, given or {})
    ]


def test_every_rule_but_that_of_the_file_itself_can_be_set() -> None:
    assert [rule.value for rule in NodeRule] == [rule.name for rule in RULES if rule is not INVALID_SETTINGS]
    assert {severity.value for severity in FindingSeverity} < {severity.value for severity in RuleSeverity}


def test_the_file_sets_and_what_is_given_goes_before_it(tmp_path: Path) -> None:
    missing = "missing-section"
    assert severities(tmp_path, "") == [(missing, "error", 1)]
    assert severities(tmp_path, "rules:\n") == [(missing, "error", 1)]
    assert severities(tmp_path, f"rules: {{{missing}: warning}}") == [(missing, "warning", 1)]
    assert severities(tmp_path, f"rules:\n  {missing}: off\n") == []
    given = {NodeRule.MISSING_SECTION: RuleSeverity.ERROR}
    assert severities(tmp_path, f"rules:\n  {missing}: 'off'\n", given) == [(missing, "error", 1)]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("rules:\n  no-such: off\n", 2),
        ("rules:\n  invalid-settings: off\n", 2),
        ("rules:\n  stale: loud\n", 2),
        ("rules:\n  stale: [off]\n", 2),
        ("rules:\n  [a]: off\n", 2),
        ("rules: [stale]\n", 1),
        ("other: 1\n", 1),
        ("- rules\n", 1),
        ("rules:\n  stale: off\n  - x\n", 3),
        ("a: &a [*a]\n", 1),
        pytest.param("[" * 20_000, 1, marks=pytest.mark.slow),
        ("caf\udce9".encode(errors="surrogateescape").decode("latin-1"), 1),
        ("x" * 70_000, 1),
    ],
)
def test_what_is_wrong_with_the_file_is_told_and_loosens_nothing(tmp_path: Path, text: str, line: int) -> None:
    (found, missing) = severities(tmp_path, text)
    assert found[:2] == ("invalid-settings", "error")
    assert found[2] == line or len(text) > 10_000
    assert missing == ("missing-section", "error", 1)


def test_a_link_out_of_the_project_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text("rules: {missing-section: off}")
    root = write_tree(tmp_path / "shop", {"AGENTS.md": NODE, ".intent-layer/": ""})
    (root / RULES_FILE).symlink_to(tmp_path / "rules.yaml")
    tree = ProjectTree(root)
    assert [each.rule for each in validate_selected(tree, select_nodes(tree))] == [
        "invalid-settings",
        "missing-section",
    ]


def test_a_server_is_told_in_its_configuration_with_or_without_quotes(tmp_path: Path) -> None:
    file = tmp_path / "cstp.yaml"
    project = f"intent_layer:\n  projects:\n    - name: shop\n      root: {tmp_path}\n      rules: "
    file.write_text(f"{project}{{stale: off, over-target: 'off', missing-section: warning}}\n")
    (shop,) = config.load_settings(file).intent_layer.projects
    assert shop.rules == {
        NodeRule.STALE: RuleSeverity.OFF,
        NodeRule.OVER_TARGET: RuleSeverity.OFF,
        NodeRule.MISSING_SECTION: RuleSeverity.WARNING,
    }
    file.write_text(f"{project}{{no-such: off}}\n")
    with pytest.raises(ConfigError, match="no-such"):
        config.load_settings(file)


def test_a_server_goes_by_its_configuration(tmp_path: Path) -> None:
    root = write_tree(tmp_path / "shop", {"AGENTS.md": NODE, RULES_FILE: "rules: {missing-section: off}\n"})
    project = {"name": "shop", "root": str(root), "rules": {"missing-section": "warning"}}
    with running(server_settings(tmp_path / "data", intent_layer={"projects": [project]})) as app:
        outcome = GrpcCaller(app.target).call("intentLayer.validateNodes", {"project": "shop"}, TOKENS["alice"])
    assert outcome.result is not None
    assert [each["severity"] for each in outcome.result["findings"]] == ["warning"]
