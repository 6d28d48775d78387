"""What the environment tells programs that need no settings, and how it is handed on to programs that they start."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ENV_PREFIX: Final = "CSTP_"


@dataclass(frozen=True, slots=True)
class CommandEnvironment:
    """What the environment tells the commands that call servers."""

    config: Path | None
    """CSTP_CONFIG: the configuration file where none is named."""
    agents_file: Path | None
    """CSTP_AGENTS_FILE: the agents file where none is named."""
    token: str | None
    """CSTP_TOKEN: the bearer token for a server that no agents file describes."""
    ca_file: Path | None
    """CSTP_CA_FILE: a PEM file of the authorities that certify such a server."""


def silence_grpc() -> None:
    """Keep gRPC from writing a log of its own to standard error, unless GRPC_VERBOSITY asks for it.

    gRPC reads the variable when it is imported.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def forbid_telemetry() -> None:
    """Keep ONNX Runtime from reporting to its makers, which it prepares to do as soon as it is imported."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def command_environment() -> CommandEnvironment:
    """Return what the environment tells the commands that call servers."""
    config, agents_file, ca_file = (os.environ.get(ENV_PREFIX + name) for name in ("CONFIG", "AGENTS_FILE", "CA_FILE"))
    return CommandEnvironment(
        config=Path(config) if config else None,
        agents_file=Path(agents_file) if agents_file else None,
        token=os.environ.get(f"{ENV_PREFIX}TOKEN") or None,
        ca_file=Path(ca_file) if ca_file else None,
    )


def inherited_environment(names: Iterable[str]) -> dict[str, str]:
    """Return those variables of the environment that are set, for programs that this one starts."""
    return {name: os.environ[name] for name in names if name in os.environ}


def environment_without_settings() -> dict[str, str]:
    """Return the environment without our settings, for programs that this one starts and configures by itself."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}
