"""What docs/intent-layer.md shows of a report, and what its tables and its hook say."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from cstp_grpc.cli.main import main
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.modules.intent_layer.model import LearningState
from cstp_grpc.modules.intent_layer.report_format import parse_report
from cstp_grpc.modules.intent_layer.validation_rules import RULES
from tests.modules.intent_layer.repositories import needs_git
from tests.snippets import ROOT, read_snippets, reading

DOCUMENT = "docs/intent-layer.md"
GUIDE = (ROOT / DOCUMENT).read_text(encoding="utf-8")
API = (ROOT / "docs" / "api" / "README.md").read_text(encoding="utf-8")


@needs_git
def test_the_hook_of_the_guide_keeps_errors_out(tmp_path: Path) -> None:
    project, _, hook = (snippet for snippet in read_snippets(DOCUMENT) if snippet.language == "sh")
    commit = "git add --all && git -c user.name=Ann -c user.email=ann@example.org commit --quiet --message Begin"
    with reading(tmp_path) as reader:
        reader.try_program(project, "")
        reader.try_program(hook, "")
        assert reader.run(commit).status == 0
        assert reader.run(f"echo '# Nothing' > AGENTS.md && {commit}").status == 1


def test_the_report_of_the_guide_is_read() -> None:
    (report,) = (snippet.text for snippet in read_snippets(DOCUMENT) if snippet.language == "markdown")
    identifier = re.findall(r"\*\*ID\*\*: (.*)", report)[0]
    learning = parse_report(
        report.encode(), identifier, LearningState.PENDING, f".intent-layer/mistakes/pending/{identifier}.md"
    )
    assert (learning.id, learning.agent_id, learning.paths) == (identifier, "swarm-worker-3", ("src/api/handlers.ts",))


def test_every_rule_is_in_the_guide_as_it_is() -> None:
    items = [f"- `{rule.name}` ({rule.severity}): {rule.meaning} Remedy: {rule.remedy}." for rule in RULES]
    found = re.findall(r"^- `[a-z0-9-]+` \((?:error|warning)\): .*(?:\n  .*)*", GUIDE, re.MULTILINE)
    assert [" ".join(item.split()) for item in found] == items


def test_every_rpc_is_in_the_guide_with_its_permission() -> None:
    written = {
        name: permission
        for permission, names in re.findall(r"^- `([a-z]+)`: (`intentLayer\..*(?:\n  .*)*)$", GUIDE, re.MULTILINE)
        for name in re.findall(r"`(intentLayer\.\w+)`", names)
    }
    served = re.findall(r"^\| \[`(intentLayer\.\w+)`\]\S+ \| (\w+) \|", API, re.MULTILINE)
    assert written == dict(served)
    assert set(written) == {name for name in contract_methods() if name.startswith("intentLayer.")}


@pytest.mark.parametrize("group", ["context", "learn"])
def test_every_command_and_option_is_in_the_guide(group: str) -> None:
    context = click.Context(main)
    commands = main.get_command(context, group)
    assert isinstance(commands, click.Group)
    for name, command in commands.commands.items():
        (row,) = re.findall(rf"^- `cstp {group} {name}\b.*(?:\n  .*)*", GUIDE, re.MULTILINE)
        options = {parameter.opts[0] for parameter in command.params if isinstance(parameter, click.Option)}
        assert options - {"--json", "--project"} == set(re.findall(r"--[a-z-]+", row))
