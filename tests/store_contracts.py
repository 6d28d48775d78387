"""Which tests prove methods of SQL stores: those marked `contract` with their names, such as `SqlTaskStore.add`."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

PRODUCT = Path(__file__).resolve().parent.parent / "cstp_grpc"


@functools.cache
def store_modules() -> dict[str, str]:
    """Return the module of each method of a store, by the name that tests are marked with."""
    found: dict[str, str] = {}
    for path in PRODUCT.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "\nclass Sql" not in text:
            continue
        module = ".".join(path.relative_to(PRODUCT.parent).with_suffix("").parts)
        for store in ast.parse(text).body:
            if isinstance(store, ast.ClassDef) and re.match("Sql[A-Z]", store.name):
                found |= {f"{store.name}.{method}": module for method in public_methods(store)}
    return found


def public_methods(store: ast.ClassDef) -> Iterator[str]:
    """Yield the names of the methods of a class that others call."""
    functions = [member for member in store.body if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in functions:
        is_property = any(ast.unparse(decorator) == "property" for decorator in function.decorator_list)
        if not function.name.startswith("_") and not is_property:
            yield function.name


@contextmanager
def observe_calls(names: Sequence[str]) -> Iterator[None]:
    """Fail after the block unless it called each of some methods."""
    missing = set(names)
    with ExitStack() as patched:
        for name in names:
            store_name, _, method = name.partition(".")
            store = getattr(importlib.import_module(store_modules()[name]), store_name)
            observed = tell_calls(getattr(store, method), functools.partial(missing.discard, name))
            patched.enter_context(patch.object(store, method, observed))
        yield
    assert not missing, "the test is marked as the contract of these and does not call them"


def tell_calls(function: Callable[..., Any], tell: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that does the same and tells that it is called."""

    @functools.wraps(function)
    def observed(*arguments: Any, **options: Any) -> Any:
        tell()
        return function(*arguments, **options)

    return observed
