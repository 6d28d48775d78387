"""Agent frameworks that call the agent by the URL of its card: the programs of the guide, with the real packages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest

from tests.bridge.a2a.products import Product, serving
from tests.bridge.a2a.sdks import SESSION_SECONDS, install_frameworks, run_command
from tests.harness import TOKENS, bridging
from tests.snippets import read_snippets

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

Program = Callable[[str, str], str]


@pytest.fixture(scope="module")
def run_program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    """Run a program of the guide against the bridge at a URL, and return what it prints."""
    packages = install_frameworks()
    folder = tmp_path_factory.mktemp("programs")
    for snippet in read_snippets("docs/a2a.md"):
        if snippet.title in {"adk_client.py", "strands_client.py"}:
            (folder / snippet.title).write_text(snippet.text)

    def run(name: str, url: str) -> str:
        variables = {"PYTHONPATH": str(packages), "CSTP_URL": url, "CSTP_TOKEN": TOKENS["alice"], "HOME": str(folder)}
        ended = run_command((sys.executable, "-S", name), folder, SESSION_SECONDS, **variables)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout + ended.stderr

    return run


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    with serving(tmp_path_factory.mktemp("product")) as served:
        yield served


@pytest.mark.parametrize("name", ["adk_client.py", "strands_client.py"])
def test_an_intent_is_announced(run_program: Program, product: Product, name: str) -> None:
    with bridging(product.settings, product.core.target) as url:
        assert "no guardrail of 5 blocks this intent" in run_program(name, url)


def test_adk_refuses_a_card_that_names_grpc(run_program: Program, product: Product) -> None:
    assert "Agent card RPC URL must" in run_program("adk_client.py", product.bridges[0].url)
