"""The choice of the server that a command calls, and of its token."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from cstp_grpc.cli.agents_file import AgentCallDefaults, AgentEntry, AgentsFile
from cstp_grpc.config.hosts import dial_host, join_host_port
from cstp_grpc.errors import ConfigError

if TYPE_CHECKING:
    from cstp_grpc.client import CstpClient
    from cstp_grpc.config import CommandEnvironment, Settings


AGENTS_FILE = "agents.yaml"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server to call; `origin` names the source of its URL, `identified_by` the source of its token."""

    url: str
    origin: str
    token: str | None = None
    identified_by: str = ""
    local: bool = False
    """True for this machine's own server."""
    defaults: AgentCallDefaults = field(default_factory=AgentCallDefaults)
    ca_file: Path | None = None
    """A PEM file of the authorities that certify it; None means those of the system."""

    def connect(self, timeout: float | None) -> CstpClient:
        """Return a client. Raises InvalidArgument and ConfigError."""
        from cstp_grpc.client.cstp_client import CstpClient
        from cstp_grpc.client.retry import RetryPolicy

        return CstpClient(
            self.url,
            self.token,
            timeout=self.defaults.timeout_seconds if timeout is None else timeout,
            retries=RetryPolicy(attempts=self.defaults.retry_count + 1),
            root_certificates=None if self.ca_file is None else read_ca_file(self.ca_file),
        )


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """The server options of the command line."""

    agent: str | None = None
    token: str | None = None
    agents_file: Path | None = None
    ca_file: Path | None = None


class ConfigurationSource(Protocol):
    """The configuration, loaded only as far as needed: loading all of it takes longer than most calls."""

    def data_dir(self) -> Path:
        """Return the data folder. Raises ConfigError."""

    def settings(self) -> Settings:
        """Return all settings. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class LoadedConfiguration:
    """A configuration that is loaded already."""

    loaded: Settings

    def data_dir(self) -> Path:
        """Return the data folder."""
        return self.loaded.data_dir

    def settings(self) -> Settings:
        """Return all settings."""
        return self.loaded


def choose_server(
    choice: ServerChoice, environment: CommandEnvironment, configuration: ConfigurationSource
) -> Endpoint:
    """Return the server to call. Raises ConfigError and click.UsageError.

    A URL is used as it is, a name is looked up in the agents files. Without either it is the only agent of the given
    agents file, or else this machine's own server.
    """
    named_file = choice.agents_file or environment.agents_file
    if choice.agent and "://" in choice.agent:
        return with_overrides(Endpoint(choice.agent, "--agent"), choice, environment)
    if choice.agent:
        return with_overrides(find_agent(choice.agent, existing_agents_files(named_file, configuration)), choice)
    if named_file:
        return with_overrides(only_agent(named_file), choice)
    return with_overrides(local_server(configuration), choice, environment)


def with_overrides(endpoint: Endpoint, choice: ServerChoice, environment: CommandEnvironment | None = None) -> Endpoint:
    """Return the endpoint with the token and CA file of the command line or the environment, if given."""
    # The environment's token is only for servers that no agents file describes: it must not go to every named agent.
    ca_file = choice.ca_file or (environment.ca_file if environment else None)
    overridden = replace(endpoint, ca_file=ca_file or endpoint.ca_file)
    if choice.token:
        return replace(overridden, token=choice.token, identified_by="--token")
    if environment and environment.token:
        return replace(overridden, token=environment.token, identified_by="CSTP_TOKEN")
    return overridden


def existing_agents_files(named: Path | None, configuration: ConfigurationSource) -> list[Path]:
    """Return the existing agents files, in search order."""
    if named:
        return [named]
    candidates = [
        Path(AGENTS_FILE),
        Path("~/.config/cstp").expanduser() / AGENTS_FILE,
        configuration.data_dir() / AGENTS_FILE,
    ]
    return [path for path in candidates if path.exists()]


def find_agent(name: str, files: list[Path]) -> Endpoint:
    """Return the agent with a name from the first file that has it."""
    known: list[str] = []
    for path in files:
        agents = read_agents(path)
        if found := agents.find(name):
            return endpoint_of_entry(found, agents.defaults, path)
        known += [agent.name for agent in agents.agents]
    if not files:
        raise click.UsageError(
            f"There is no agent {name!r}, because there is no {AGENTS_FILE}; --agent takes a URL too."
        )
    where = ", ".join(str(path) for path in files)
    raise click.UsageError(f"There is no agent {name!r} in {where}; there is: {', '.join(known) or 'none'}.")


def only_agent(path: Path) -> Endpoint:
    """Return the only agent of a file."""
    agents = read_agents(path)
    if len(agents.agents) != 1:
        names = ", ".join(agent.name for agent in agents.agents) or "none"
        raise click.UsageError(f"Say with --agent which agent of {path} to call; there is: {names}.")
    return endpoint_of_entry(agents.agents[0], agents.defaults, path)


def local_server(configuration: ConfigurationSource) -> Endpoint:
    """Return this machine's own server, from the developer's agents file or else from the settings."""
    described = configuration.data_dir() / AGENTS_FILE
    if described.exists() and (agents := read_agents(described)).agents:
        return replace(endpoint_of_entry(agents.agents[0], agents.defaults, described), local=True)
    settings = configuration.settings()
    if settings.grpc.port == 0:
        raise ConfigError("grpc.port: is 0, so the port is not known; name the server with --agent grpc://HOST:PORT")
    address = join_host_port(dial_host(settings.grpc.host), settings.grpc.port)
    # Our own server's certificate is trusted as it is, also if it is self-signed.
    tls = settings.grpc.tls
    url, ca_file = (f"grpcs://{address}", tls.certificate) if tls else (f"grpc://{address}", None)
    endpoint = Endpoint(url, "the configuration", local=True, ca_file=ca_file)
    if len(settings.auth.tokens) != 1:
        return endpoint
    token = settings.auth.tokens[0].token.get_secret_value()
    return replace(endpoint, token=token, identified_by="the configuration's auth.tokens")


def endpoint_of_entry(entry: AgentEntry, defaults: AgentCallDefaults, path: Path) -> Endpoint:
    """Return the endpoint of an agents-file entry."""
    from cstp_grpc.config.yaml_file import expand_text

    origin = f"{entry.name} in {path}"
    url, ca_file = expand_text(entry.url, origin), ca_file_of_entry(entry, path)
    endpoint = Endpoint(url, origin, defaults=defaults, ca_file=ca_file)
    if entry.token is None:
        return endpoint
    token = expand_text(entry.token, origin)
    return replace(endpoint, token=token, identified_by=origin)


def ca_file_of_entry(entry: AgentEntry, path: Path) -> Path | None:
    """Return the CA file of an entry, relative to the folder of the agents file."""
    return None if entry.ca_file is None else path.parent / entry.ca_file


def read_agents(path: Path) -> AgentsFile:
    """Return an agents file. Raises ConfigError."""
    # Not loaded before it is needed: a URL on the command line needs no file.
    from cstp_grpc.config.yaml_file import parse_yaml

    return AgentsFile.parse(parse_yaml(path), f"{path}: ")


def read_ca_file(path: Path) -> bytes:
    """Return a file's content. Raises ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
