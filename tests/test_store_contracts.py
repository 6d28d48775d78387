"""Each method of an SQL store has a test that is marked as its contract."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.store_contracts import store_modules

TESTS = Path(__file__).parent
MARK = "pytest.mark.contract"


def proved_methods() -> Iterator[str]:
    """Yield the methods that tests are marked with."""
    for path in TESTS.rglob("test_*.py"):
        text = path.read_text(encoding="utf-8")
        if path == Path(__file__) or MARK not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == MARK:
                yield from map(ast.literal_eval, node.args)


def test_every_method_of_a_store_has_a_contract_test() -> None:
    assert not store_modules().keys() - set(proved_methods()), "no test is marked as the contract of these"
