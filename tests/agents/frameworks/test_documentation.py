"""docs/frameworks.md shows parts of the examples that are run where the frameworks are installed."""

from __future__ import annotations

import textwrap
import tomllib

import pytest

from tests.agents.frameworks.__main__ import FRAMEWORKS
from tests.snippets import ROOT, Snippet, read_snippets

DOCUMENT = "docs/frameworks.md"
SHOWN = [snippet for snippet in read_snippets(DOCUMENT) if snippet.title.startswith("examples/frameworks/")]


@pytest.mark.parametrize("snippet", SHOWN, ids=lambda snippet: snippet.title)
def test_what_is_shown_of_an_example_stands_in_it(snippet: Snippet) -> None:
    shown = "\n".join(line.strip() for line in textwrap.dedent(snippet.text).strip().splitlines())
    assert shown in "\n".join(line.strip() for line in (ROOT / snippet.title).read_text().splitlines())


def test_each_adapter_has_its_extra_module_example_tests_and_section() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    document = (ROOT / DOCUMENT).read_text()
    for extra, module in FRAMEWORKS.items():
        assert extras[extra]
        assert f"(extra `{extra}`): " in document
        for path in (f"cstp_grpc/agents/frameworks/{module}.py", f"tests/agents/frameworks/{module}_agents.py"):
            assert (ROOT / path).is_file(), path
        assert f"examples/frameworks/{module}_agent.py" in {snippet.title for snippet in SHOWN}
