"""Environment variables, the environment of child processes, and hosts to dial, for programs without settings."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

ENV_PREFIX: Final = "CSTP_"

DEVELOPER_TOKEN_FILE: Final = "dev-token"  # noqa: S105 - a file's name
"""The file in the data folder with the token of `cstp serve --dev`."""
APPROVER_TOKEN_FILE: Final = "approver-token"  # noqa: S105 - a file's name
"""The file in the data folder with the token of the approver."""


def command_path() -> str:
    """Return the shell command for `cstp`: its name, or its absolute path if PATH does not find it."""
    import shutil  # not at the top: commands wait for it, and only `install` and hints need it

    found = shutil.which("cstp")
    own = Path(sys.executable).with_name("cstp")
    if not own.exists() or (found and Path(found).samefile(own)):
        return "cstp"
    return str(own)


class CommandEnvironment(NamedTuple):
    """Environment variables for the commands that call servers."""

    config: Path | None
    """CSTP_CONFIG: the configuration file if no option names one."""
    agents_file: Path | None
    """CSTP_AGENTS_FILE: the agents file if no option names one."""
    token: str | None
    """CSTP_TOKEN: the bearer token for a server that is not in an agents file."""
    ca_file: Path | None
    """CSTP_CA_FILE: a PEM file with the CA certificates for such a server."""
    client_certificate: Path | None = None
    """CSTP_CLIENT_CERTIFICATE: a PEM file with the certificate that such a server is shown, and its key."""


def silence_grpc() -> None:
    """Disable gRPC's own log on standard error, unless GRPC_VERBOSITY is set.

    gRPC reads the variable when it is imported.
    """
    # Its messages would appear amid the output of commands.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")


def forbid_telemetry() -> None:
    """Disable the telemetry of ONNX Runtime, which starts when it is imported."""
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def command_environment() -> CommandEnvironment:
    """Read the environment variables for the commands that call servers."""
    config, agents_file, ca_file = (os.environ.get(ENV_PREFIX + name) for name in ("CONFIG", "AGENTS_FILE", "CA_FILE"))
    return CommandEnvironment(
        config=Path(config) if config else None,
        agents_file=Path(agents_file) if agents_file else None,
        token=os.environ.get(f"{ENV_PREFIX}TOKEN") or None,
        ca_file=Path(ca_file) if ca_file else None,
        client_certificate=Path(shown) if (shown := os.environ.get(f"{ENV_PREFIX}CLIENT_CERTIFICATE")) else None,
    )


def inherited_environment(names: Iterable[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


def process_environment() -> dict[str, str]:
    """Return all environment variables, for another process to have them."""
    return dict(os.environ)


def replace_environment(variables: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)


def environment_without_settings() -> dict[str, str]:
    """Return the environment without our settings, for child processes that are configured otherwise."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENV_PREFIX)}


DIAL_HOST_OF_WILDCARD = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the host to dial for a server that listens on all addresses


def is_loopback(host: str) -> bool:
    """Return whether a server on this address is reachable from this machine only."""
    # Not resolved: what a name leads to may change after the check.
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def dial_host(host: str) -> str:
    """Return the host to dial on this machine for a server that listens on `host`."""
    return DIAL_HOST_OF_WILDCARD.get(host, host)


def join_host_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
