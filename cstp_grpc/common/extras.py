"""The extras of the distribution, and the libraries that they install.

This module imports none of those libraries. Their requirements, with versions, are in pyproject.toml.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from typing import Final

from cstp_grpc.common.lazy_dataclass import dataclass

DISTRIBUTION: Final = "cstp-grpc"


@dataclass(frozen=True, slots=True)
class Extra:
    """An extra: its purpose, its libraries, and the extras that it includes."""

    purpose: str
    libraries: tuple[str, ...]
    includes: tuple[str, ...] = ()


EXTRAS: Final[Mapping[str, Extra]] = {
    "guardrails": Extra(
        "Evaluating rulebooks in this process",
        ("cel_expr_python", "sqlglot", "tree_sitter", "tree_sitter_bash", "tree_sitter_powershell"),
    ),
    "import": Extra("Importing decision records", ("protovalidate",)),
    "times": Extra("Reading times in words", ("dateparser",)),
    "a2a": Extra("Verifying agent cards", ("a2a", "cryptography", "httpx", "jwt", "rfc8785")),
    "local": Extra(
        "A data folder without a server",
        (
            "sqlalchemy",
            "alembic",
            "grpc_health",
            "grpc_reflection",
            "numkong",
            "numpy",
            "onnx",
            "onnxruntime",
            "rfc8785",
            "safetensors",
            "tokenizers",
        ),
        includes=("guardrails", "import", "times"),
    ),
    "server": Extra(
        "A server",
        (
            "aiohttp",
            "aiohttp_sse",
            "chromadb",
            "grpc_status",
            "httpcore",
            "jsonpath_rfc9535",
            "limits",
            "prometheus_client",
            "psycopg",
            "regex",
            "uvloop",
        ),
        includes=("local", "a2a"),
    ),
    "redis": Extra("Rate limits in Redis", ("redis",)),
    "otel": Extra("Sending traces and metrics over OTLP", ("opentelemetry",)),
    "mcp": Extra("Serving MCP", ("mcp", "mcp_types", "starlette", "uvicorn")),
    "console": Extra("The console", ("nicegui", "fastapi", "starlette", "uvicorn", "python_multipart")),
}
"""The extras by name. An extra comes after those that it includes: for a shared library, the smaller one is named."""


class MissingExtra(ImportError):
    """A library of an extra is not installed; the message has the command that installs it."""

    def __init__(self, extra: str, library: str) -> None:
        super().__init__(
            f"{EXTRAS[extra].purpose} needs {library}, which is not installed: {install_command(extra)}", name=library
        )


def install_command(extra: str) -> str:
    return f"pip install '{DISTRIBUTION}[{extra}]'"


def libraries_of_extra(extra: str) -> Iterator[str]:
    yield from EXTRAS[extra].libraries
    for included in EXTRAS[extra].includes:
        yield from libraries_of_extra(included)


def require_extra(extra: str) -> None:
    """Raise MissingExtra if a library of an extra is not installed, without importing it."""
    for library in libraries_of_extra(extra):
        if importlib.util.find_spec(library) is None:
            raise MissingExtra(extra, library)


def missing_extra(error: ImportError) -> MissingExtra | None:
    """Return the error for the smallest extra with the missing library of a failed import; None if no extra has it.

    A MissingExtra is returned unchanged.
    """
    if isinstance(error, MissingExtra):
        return error
    if not isinstance(error, ModuleNotFoundError):
        return None
    library = (error.name or "").partition(".")[0]
    for name, extra in EXTRAS.items():
        if library in extra.libraries:
            return MissingExtra(name, library)
    return None
