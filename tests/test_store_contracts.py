"""Each method of an SQL store has a test that is marked as its contract."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.store_contracts import store_modules

TESTS = Path(__file__).parent
MARK = "pytest.mark.contract"


def proved_methods() -> Iterator[tuple[str, str]]:
    """Yield the methods that tests are marked with, each with the file of the test."""
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if path == Path(__file__) or MARK not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == MARK:
                yield from ((ast.literal_eval(name), f"tests/{path.relative_to(TESTS)}") for name in node.args)


def test_every_method_of_a_store_has_a_contract_test() -> None:
    proved = list(proved_methods())
    missing = sorted(store_modules().keys() - {name for name, _ in proved})
    assert not missing, "\n".join(
        f'{suite_of_store(name.partition(".")[0], proved)}: add a test marked @pytest.mark.contract("{name}")'
        for name in missing
    )


def suite_of_store(store: str, proved: list[tuple[str, str]]) -> str:
    """Return the file with most of the contract of a store, or where a suite for it would be."""
    files = Counter(file for name, file in proved if name.startswith(f"{store}."))
    return files.most_common(1)[0][0] if files else f"the folder of the package of {store} under tests"
