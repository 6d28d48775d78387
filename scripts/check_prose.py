"""Find patterns of bad English in documents, comments of the contract, docstrings and messages.

The rules are in `prose_rules.yaml`. Each finding is a line `path:line: text: rule`; the exit code is 1 if there is one.
Our own program, because texts stand in Markdown, Protobuf and Python, and linters of prose read only the first.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
RULES = Path(__file__).with_name("prose_rules.yaml")
UNREAD = (
    "cstp_grpc/gen/",
    "third_party/",
    "docs/api",
    "docs/adr/",
    "docs/decisions.md",
    "CHANGELOG.md",
    "node_modules/",
    "cstp_grpc/platform/storage/migrations/",
)
"""Generated, vendored, history, or SQL."""
NAMES = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+|<!--.*?-->")
QUOTED = 40
"""Characters of the text before and after what a rule finds."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text of a reader: its kind, where it begins, and itself without names and code."""

    kind: str
    path: str
    line: int
    text: str


def markdown_texts(path: str, source: str) -> Iterator[Text]:
    """Yield the lines of a page outside its code blocks."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield Text("markdown", path, number, line)


def proto_texts(path: str, source: str) -> Iterator[Text]:
    """Yield the lines of the comments."""
    for number, line in enumerate(source.splitlines(), 1):
        if found := re.match(r"\s*// ?(.*)", line):
            yield Text("proto", path, number, found[1])


def python_texts(path: str, source: str) -> Iterator[Text]:
    """Yield docstrings, those of attributes included, and strings of several words."""
    tree = ast.parse(source)
    documents = {
        id(statement.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        for statement in node.body
        if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield Text("docstring" if id(node) in documents else "string", path, node.lineno, node.value)


READERS = {".md": markdown_texts, ".proto": proto_texts, ".py": python_texts}


def read_texts(paths: list[str]) -> Iterator[Text]:
    """Yield the texts of the tracked files below some paths."""
    listed = subprocess.run(["git", "ls-files", "--", *paths], cwd=ROOT, capture_output=True, text=True, check=True)
    for path in listed.stdout.splitlines():
        reader = READERS.get(Path(path).suffix)
        if reader is not None and not path.startswith(UNREAD):
            yield from reader(path, (ROOT / path).read_text(encoding="utf-8"))


def find_faults(text: Text, rules: list[tuple[re.Pattern[str], str, list[str] | None]]) -> Iterator[str]:
    """Yield a line for each match of a rule."""
    plain = NAMES.sub("X", text.text)
    for pattern, instead, kinds in rules:
        if kinds is None or text.kind in kinds:
            for match in pattern.finditer(plain):
                line = text.line + plain.count("\n", 0, match.start())
                near = " ".join(plain[max(0, match.start() - QUOTED) : match.end() + QUOTED].split())
                yield f"{text.path}:{line}: …{near}…: write {instead}"


def main() -> int:
    """Check the texts of the product and its documents."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="*", help="files and folders [default: all that readers see]")
    folders = ["docs", "proto", "cstp_grpc", "bridge", "console", "examples", "clients"]
    paths = parser.parse_args().paths or ["*.md", *folders]
    written = yaml.safe_load(RULES.read_text(encoding="utf-8"))
    rules = [(re.compile(rule["find"], re.M | re.I), rule["write"], rule.get("in")) for rule in written]
    faults = [fault for text in read_texts(paths) for fault in find_faults(text, rules)]
    print("\n".join(faults) or "No patterns of bad English were found.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
