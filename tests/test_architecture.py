"""Who may import what, beyond the layers that import-linter keeps."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

from tests.named_case import named_case

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cstp_grpc", "bridge", "console")
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py") if "gen" not in path.parts)

ONLY = {
    "chromadb": {"cstp_grpc/platform/embedding/model_files.py"},
    "cel_expr_python": {"cstp_grpc/core/guardrails/cel_engine.py"},
    "httpcore": {"cstp_grpc/client/http_client.py"},
    "limits": {
        "cstp_grpc/server/interceptors/rate_limits.py",
        "cstp_grpc/server/interceptors/shared_rate_limits.py",
    },
    "redis": {"cstp_grpc/server/interceptors/shared_rate_limits.py"},
    "opentelemetry": {
        "cstp_grpc/server/telemetry/call_spans.py",
        "cstp_grpc/platform/telemetry/otlp_metrics.py",
        "cstp_grpc/platform/telemetry/otlp_tracing.py",
    },
    "protovalidate": {"cstp_grpc/server/request_validation.py", "cstp_grpc/cli/import_command.py"},
}

LONGEST_UNDOCUMENTED = 20
SQL_DRIVERS = ("sqlalchemy", "alembic", "sqlite3", "psycopg")
UNWRAPPING = {"unit_of_work": ("connection", "driver", "execute"), "database": ("engine", "dialect")}


@functools.cache
def syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module, which most of these tests walk."""
    return ast.parse(path.read_text())


@functools.cache
def imported_modules(path: Path) -> frozenset[str]:
    """Return the names of the modules that a module imports."""
    names: set[str] = set()
    for node in ast.walk(syntax_tree(path)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return frozenset(names)


def importers(package: str) -> set[str]:
    return {
        str(path.relative_to(ROOT))
        for path in SOURCES
        if any(name == package or name.startswith(f"{package}.") for name in imported_modules(path))
    }


def test_a_library_is_behind_few_modules() -> None:
    for package in sorted(ONLY):
        with named_case(package):
            assert importers(package) == ONLY[package]


def test_sql_stays_in_the_stores() -> None:
    strays = {path for driver in SQL_DRIVERS for path in importers(driver) if not keeps_sql(path)}
    assert not strays


def test_only_the_stores_unwrap_units_of_work() -> None:
    strays = {
        f"{path}:{node.lineno}"
        for path in SOURCES
        if not keeps_sql(str(path.relative_to(ROOT)))
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in UNWRAPPING.get(node.value.id, ())
    }
    assert not strays


def keeps_sql(path: str) -> bool:
    """Whether a module may name SQL and its drivers."""
    return path.startswith("cstp_grpc/platform/storage/") or "/sql_" in path


def test_only_the_configuration_reads_the_environment() -> None:
    readers = {
        str(path.relative_to(ROOT))
        for path in SOURCES
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")
    }
    assert {str(Path(reader).parent) for reader in readers} <= {"cstp_grpc/platform/config"}


def test_the_contract_and_the_rulebooks_are_no_python_packages() -> None:
    for folder in ("proto", "guardrails"):
        assert not list((ROOT / folder).rglob("__init__.py"))


def test_a_servicer_does_not_catch() -> None:
    servicers = sorted((ROOT / "cstp_grpc").rglob("*servicer.py"))
    assert servicers
    for path in servicers:
        assert not [node for node in ast.walk(syntax_tree(path)) if isinstance(node, ast.Try)], path


def test_a_function_that_cannot_be_seen_at_a_glance_has_a_docstring() -> None:
    missing = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for parent in ast.walk(syntax_tree(path))
        if isinstance(parent, ast.Module | ast.ClassDef)
        for node in parent.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and "versions" not in path.parts
        and not node.name.startswith("_")
        and (node.end_lineno or 0) - node.lineno > LONGEST_UNDOCUMENTED
        and ast.get_docstring(node) is None
    ]
    assert missing == []


ONE_WORD = {
    "main": "what the field calls the entry point of a program",
    "upgrade": "Alembic's name for the step of a migration",
    "guard": "public: it stands as a decorator and in `with` statements of users",
}
"""Names of one word that functions of modules may have, with the reasons."""


def module_functions() -> Iterator[tuple[Path, str]]:
    for path in SOURCES:
        for node in syntax_tree(path).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path.relative_to(ROOT), node.name


def test_functions_of_modules_say_what_they_do_with_more_than_one_word() -> None:
    short = {f"{path}: {name}" for path, name in module_functions() if "_" not in name.strip("_")}
    allowed = {f"{path}: {name}" for path, name in module_functions() if name in ONE_WORD}
    assert not short - allowed, "name them by verb and object, as docs/glossary.md has the nouns"


def test_a_class_name_stands_in_one_package_only() -> None:
    packages: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in ast.walk(syntax_tree(path)):
            if isinstance(node, ast.ClassDef):
                packages.setdefault(node.name, set()).add(str(path.relative_to(ROOT).parent))
    assert {name: sorted(found) for name, found in packages.items() if len(found) > 1} == {}


def test_each_noun_of_the_glossary_is_a_class_that_exists() -> None:
    glossary = (ROOT / "docs" / "glossary.md").read_text()
    rows = re.findall(r"^- \*\*(.+)\*\* \(`([\w.]+)`\): (\w.+)$", glossary, re.MULTILINE)
    assert len(rows) >= 30
    for noun, dotted, _ in rows:
        module, _, name = dotted.rpartition(".")
        assert hasattr(importlib.import_module(module), name), f"{noun}: there is no {dotted}"
    assert [noun for noun, *_ in rows] == sorted((noun for noun, *_ in rows), key=str.lower), "the nouns are sorted"


def test_no_method_hides_a_type_from_the_annotations_of_its_class() -> None:
    hidden = {"bool", "bytes", "dict", "float", "frozenset", "int", "list", "object", "set", "str", "tuple"}
    found = {
        f"{path.relative_to(ROOT)}: {node.name}.{method.name}"
        for path in SOURCES
        # The stores of A2A tasks in the bridge have the names of the SDK.
        if path.is_relative_to(ROOT / "cstp_grpc")
        for node in ast.walk(syntax_tree(path))
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name in hidden
    }
    assert found == set(), "name the method for its result, such as `page`"
