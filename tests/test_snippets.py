"""Every fenced block of the documents, tried in the order in which a reader meets them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cstp_grpc import config
from tests.intent_layer.repositories import needs_git
from tests.snippets import DOCUMENTS, ROOT, Snippet, read_snippets, reading

NOT_RUN = {
    ("README.md", "make run     # a gRPC server and an HTTP bridge on this machine, with example decisions"): (
        "`make test` is what runs this; each document that needs a server is read beside `make run`"
    ),
    (
        "docs/a2a-compatibility.md",
        "$ git clone https://github.com/a2aproject/a2a-tck",
    ): "fetches the kits from the network",
    ("docs/a2a-compatibility.md", "import contextlib"): "a plugin of the kits, which are fetched from the network",
    ("docs/a2a-compatibility.md", "import uuid"): "a plugin of the kits, which are fetched from the network",
    ("docs/a2a.md", "func parseCard"): "needs the SDK for Go, from the network",
    ("docs/a2a.md", "AgentCard card = "): "needs the SDK for Java, from the network",
    ("docs/a2a.md", "public PayloadAndHeaders"): "needs the SDK for Java, from the network",
    ("docs/architecture.md", "agent --JSON-RPC, A2A--> bridge/"): "a drawing",
    ("docs/architecture.md", "cli > hooks > local > server, "): "a list of layers",
    ("docs/concepts.md", "agent                bridge "): "a drawing",
    ("docs/benchmarks.md", "make bench"): "takes ten minutes: its parts are tried by tests/bench",
    ("docs/calibration.md", "41 decisions with "): "a plot: compared by tests/cli/test_calibration.py",
    ("docs/callbacks.md", "{"): "sent by a server: compared by tests/callbacks/test_guide.py",
    ("docs/deployment.md", "$ cstp serve --config cstp.yaml --workers auto"): "tried by tests/cli/test_workers.py",
    **{
        ("docs/importing.md", title): "imported by tests/importing/test_documentation.py"
        for title in ("shop/docs/adr/", "shop/decisions.yaml", "mapping.yaml", "rfcs.jsonl", "result")
    },
    ("docs/hooks.md", "```cstp-learning"): "the form of a block: read by tests/hooks/test_learning_blocks.py",
    ("docs/guardrails.md", ""): "walked, and looked at afterwards, by tests/test_guardrails_guide.py",
    (
        "docs/intent-layer.md",
        "scripts/resolve_context.sh PROJECT_ROOT",
    ): "usage: run by tests/test_intent_layer_scripts.py",
    ("docs/intent-layer.md", "# PITFALL: "): "the form of a file: read by tests/test_intent_layer_guide.py",
    ("examples/liaison/README.md", ""): "run and compared by tests/test_liaison_example.py",
}
"""Why a block is not tried here, by its document and the beginning of its title or first line."""


def reason_not_run(snippet: Snippet) -> str:
    """Return why a block is not tried here; empty if it is to be."""
    if snippet.document.startswith("clients/"):
        return "tried by `make test-clients`, with the tools of its language"
    reasons = (reason for (document, begin), reason in NOT_RUN.items() if matches(snippet, document, begin))
    return next(reasons, "")


def matches(snippet: Snippet, document: str, begin: str) -> bool:
    """Return whether an entry of the list is about a block."""
    return snippet.document == document and (snippet.title or snippet.first_line).startswith(begin)


def documents_with_blocks() -> list[str]:
    """Return the documents that have any fenced block; which of them are tried is told when they are read."""
    return [document for document in DOCUMENTS if "```" in (ROOT / document).read_text(encoding="utf-8")]


# A document starts servers and has many commands, each of which is bounded by itself.
@pytest.mark.timeout(300)
@needs_git
@pytest.mark.parametrize("document", documents_with_blocks())
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
