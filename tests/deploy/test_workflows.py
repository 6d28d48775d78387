"""The workflows of GitHub are valid."""

from __future__ import annotations

import pytest

from tests.deploy.test_files import run
from tests.deploy.tools import require_tool
from tests.installations import ROOT


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_passes_actionlint(workflow: object) -> None:
    run(require_tool("actionlint"), str(workflow))
