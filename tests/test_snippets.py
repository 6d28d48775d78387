"""Every fenced block of the documents, tried in the order in which a reader meets them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from cstp_grpc.platform import config
from tests.modules.intent_layer.repositories import needs_git
from tests.snippets import DOCUMENTS, ROOT, Snippet, is_running, read_snippets, reading

NOT_RUN = {
    ("README.md", "make run     # a server, its HTTP bridge and the console on this machine, with example decisions"): (
        "`make test` is what runs this; each document that needs a server is read beside `make run`"
    ),
    (
        "docs/a2a-compatibility.md",
        "$ git clone https://github.com/a2aproject/a2a-tck",
    ): "fetches the kits from the network",
    ("docs/a2a-compatibility.md", "import contextlib"): "a plugin of the kits, which are fetched from the network",
    ("docs/a2a-compatibility.md", "import uuid"): "a plugin of the kits, which are fetched from the network",
    **{
        ("docs/a2a.md", title): "run with the real package by tests/bridge/a2a/test_agent_frameworks.py"
        for title in ("adk_client.py", "strands_client.py")
    },
    ("docs/a2a.md", "func parseCard"): "needs the SDK for Go, from the network",
    ("docs/a2a.md", "AgentCard card = "): "needs the SDK for Java, from the network",
    ("docs/a2a.md", "public PayloadAndHeaders"): "needs the SDK for Java, from the network",
    ("docs/benchmarks.md", "make bench"): "takes ten minutes: its parts are tried by tests/bench",
    ("docs/calibration.md", "41 decisions with "): "a plot: compared by tests/cli/test_calibration.py",
    ("docs/callbacks.md", "{"): "sent by a server: compared by tests/modules/callbacks/test_guide.py",
    ("docs/console.md", "cstp console --dev"): "runs until it is stopped: started by tests/console/browser.py",
    ("docs/notifications.md", "{"): "sent by a server: compared by tests/modules/notifications/test_notifications.py",
    (
        "docs/deployment/scaling.md",
        "$ cstp serve --config cstp.yaml --workers auto",
    ): "tried by tests/cli/test_workers.py",
    ("docs/deployment/containers.md", "kubectl create namespace cstp"): "needs a cluster of Kubernetes",
    ("docs/importing.md", "$ cstp export --agent grpc://old"): "needs two servers: tests/cli/test_round_trip.py",
    **{
        ("docs/importing.md", title): "imported by tests/modules/importing/test_documentation.py"
        for title in ("shop/docs/adr/", "shop/decisions.yaml", "mapping.yaml", "rfcs.jsonl", "result")
    },
    (
        "docs/observability.md",
        "scrape_configs:",
    ): "a file of Prometheus: tests/platform/telemetry asks the endpoint",
    ("docs/guardrails/commands.md", "commands.exists"): "a part of rules: packs are full of such ones",
    ("docs/hooks.md", "```cstp-learning"): "the form of a block: read by tests/agents/hooks/test_learning_blocks.py",
    (
        "docs/hooks.md",
        "> Free some disk space.",
    ): "a session of Claude Code: such ones are run by tests/agents/hosts/interop.py",
    ("docs/hooks.md", "/plugin marketplace add"): "typed into Claude Code",
    ("docs/frameworks.md", "examples/frameworks/"): "part of an example, which `make test-frameworks` runs",
    ("docs/walk.md", ""): "walked by tests/agents/hosts/walk.py",
    ("docs/guardrails/first-rule.md", ""): "walked, and looked at afterwards, by tests/test_guardrails_guide.py",
    ("docs/installing.md", ""): "installs from the network: tried by tests/test_installed_wheel.py",
    (
        "docs/intent-layer.md",
        "scripts/resolve_context.sh PROJECT_ROOT",
    ): "usage: run by tests/test_intent_layer_scripts.py",
    ("docs/intent-layer.md", "# PITFALL: "): "the form of a file: read by tests/test_intent_layer_guide.py",
    ("examples/liaison/README.md", ""): "run and compared by tests/test_liaison_example.py",
}
"""Why a block is not tried here, by its document and the beginning of its title or first line."""


LONG_DOCUMENTS = {
    f"docs/{name}.md"
    for name in (
        "a2a",
        "approvals",
        "audit",
        "clients",
        "deployment/tls",
        "deployment/tokens",
        "federation",
        "frameworks",
        "guardrails/agent-safety",
        "guardrails/explanations",
        "guardrails/listing-rules",
        "guardrails/tools",
        "hooks",
        "intent-layer",
        "intents",
        "journal",
        "liaison",
        "local",
        "mcp",
        "operations",
        "session-context",
    )
}
"""Documents whose servers or commands take several seconds to start: they are tried by `make test-slow`."""


def reason_not_run(snippet: Snippet) -> str:
    """Return why a block is not tried here; empty if it is to be."""
    if snippet.document.startswith("clients/"):
        return "tried by `make test-clients`, with the tools of its language"
    reasons = (reason for (document, begin), reason in NOT_RUN.items() if matches(snippet, document, begin))
    return next(reasons, "")


def matches(snippet: Snippet, document: str, begin: str) -> bool:
    """Return whether an entry of the list is about a block."""
    return snippet.document == document and (snippet.title or snippet.first_line).startswith(begin)


def documents_with_blocks() -> Iterator[ParameterSet]:
    """Yield the documents that have any fenced block; which of them are tried is told when they are read."""
    for document in DOCUMENTS:
        if "```" in (ROOT / document).read_text(encoding="utf-8"):
            yield pytest.param(document, marks=pytest.mark.slow if document in LONG_DOCUMENTS else ())


# A document starts servers and has many commands, each of which is bounded by itself.
@pytest.mark.timeout(300)
@needs_git
@pytest.mark.parametrize("document", list(documents_with_blocks()))
def test_the_blocks_of_a_document_work_in_the_order_of_reading(document: str, tmp_path: Path) -> None:
    if snippets := [snippet for snippet in read_snippets(document) if not reason_not_run(snippet)]:
        with reading(tmp_path) as reader:
            reader.try_document(snippets)


def test_what_is_listed_as_not_run_exists() -> None:
    snippets = [snippet for document in DOCUMENTS for snippet in read_snippets(document)]
    for document, begin in NOT_RUN:
        assert any(matches(snippet, document, begin) for snippet in snippets), (document, begin)


@pytest.mark.parametrize(
    ("block", "failure"),
    [
        ("```cobol\nSTOP RUN.\n```", r"guide.md:1 \(cobol\) is neither tried nor listed"),
        ("```\n+--+\n```", r"guide.md:1 \(no language\) is neither tried nor listed"),
        ("```console\n$ echo 1\n2\n```", r"guide.md:1 \(console\): echo 1 prints\n1\n"),
        ("```console\n$ test -e nothing\n```", r"guide.md:1 \(console\): test -e nothing ends with 1"),
        ("```sh\nexport A=\ntest $A\n```", r"guide.md:1 \(sh\) ends with 1"),
        ("```python\nprint(token)\n```", r"guide.md:1 \(python\) ends with 1:(.|\n)*NameError"),
        ("```yaml\ngrpc: {prot: 1}\n```", r"prot"),
        ('```json\n{"jsonrpc": "2.0", "id": 1, "method": "cstp.nothing"}\n```', r"guide.md:1 \(json\) is no request"),
    ],
)
def test_a_block_that_does_not_work_fails_by_its_place(block: str, failure: str, tmp_path: Path) -> None:
    document = tmp_path / "guide.md"
    document.write_text(block)
    (snippet,) = read_snippets(str(document))
    folder = tmp_path / "checkout"
    folder.mkdir()
    with (
        reading(folder) as reader,
        pytest.raises((AssertionError, config.ConfigError), match=failure),
    ):
        reader.try_snippet(snippet)


def test_an_identifier_that_was_printed_stands_for_the_one_that_the_document_says(tmp_path: Path) -> None:
    document = tmp_path / "guide.md"
    written, made_up = (digit * 64 for digit in "ab")
    document.write_text(
        f"```console\n$ echo {made_up} 12 ms; echo more\n{written} 7 ms\n…\n$ echo {written}\n{written}\n```"
    )
    (snippet,) = read_snippets(str(document))
    with reading(tmp_path) as reader:
        reader.try_session(snippet)


def test_a_server_that_ends_at_once_fails_with_what_it_said(tmp_path: Path) -> None:
    with reading(tmp_path) as reader:
        reader.run("cstp() { echo no server today; }")
        with pytest.raises(AssertionError, match="cstp serve --dev ended:\nno server today"):
            reader.run("cstp serve --dev")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="tells by /proc what has ended")
def test_what_has_ended_does_not_run_even_if_nobody_has_asked_for_its_status() -> None:
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not is_running(process.pid)
    assert is_running(os.getpid())
