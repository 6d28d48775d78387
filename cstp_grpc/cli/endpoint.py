"""Which server a command calls, and with which token."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import click

from cstp_grpc.client.agents import AgentEntry, AgentsFile, Defaults
from cstp_grpc.config.hosts import join, reachable
from cstp_grpc.errors import ConfigError

if TYPE_CHECKING:
    from cstp_grpc.client import CstpClient
    from cstp_grpc.config import CommandEnvironment, Settings

AGENTS_FILE = "agents.yaml"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server and how to call it; `origin` says in words what named it, `identified_by` what named its token."""

    url: str
    origin: str
    token: str | None = None
    identified_by: str = ""
    local: bool = False
    """Whether it is this machine's own server."""
    defaults: Defaults = field(default_factory=Defaults)
    ca_file: Path | None = None
    """A PEM file of the authorities that certify it; None leaves it to the system's."""

    def connect(self, timeout: float | None) -> CstpClient:
        """Return a client. Raises InvalidArgument and ConfigError."""
        from cstp_grpc.client.client import CstpClient
        from cstp_grpc.client.retry import RetryPolicy

        return CstpClient(
            self.url,
            self.token,
            timeout=self.defaults.timeout_seconds if timeout is None else timeout,
            retries=RetryPolicy(attempts=self.defaults.retry_count + 1),
            root_certificates=None if self.ca_file is None else read_bytes(self.ca_file),
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """What the command line says of the server to call."""

    agent: str | None = None
    token: str | None = None
    agents_file: Path | None = None
    ca_file: Path | None = None


class Configuration(Protocol):
    """What is configured, read as far as it is asked for: all of it takes longer than most calls."""

    def data_dir(self) -> Path:
        """Return the data folder. Raises ConfigError."""

    def settings(self) -> Settings:
        """Return all settings. Raises ConfigError."""


@dataclass(frozen=True, slots=True)
class LoadedConfiguration:
    """Settings that were loaded already."""

    loaded: Settings

    def data_dir(self) -> Path:
        """Return the data folder."""
        return self.loaded.data_dir

    def settings(self) -> Settings:
        """Return all settings."""
        return self.loaded


def resolve(choice: Choice, environment: CommandEnvironment, configuration: Configuration) -> Endpoint:
    """Return the server to call. Raises ConfigError and click.UsageError.

    A URL is called as it is, a name is looked up in the agents files. Without either it is the only agent of the
    agents file that was named, or else this machine's own server.
    """
    named_file = choice.agents_file or environment.agents_file
    if choice.agent and "://" in choice.agent:
        return preferring(Endpoint(choice.agent, "--agent"), choice, environment)
    if choice.agent:
        return preferring(by_name(choice.agent, agents_files(named_file, configuration)), choice)
    if named_file:
        return preferring(only_agent(named_file), choice)
    return preferring(local_server(configuration), choice, environment)


def preferring(endpoint: Endpoint, choice: Choice, environment: CommandEnvironment | None = None) -> Endpoint:
    """Return the endpoint with the token and the authorities of the command line or the environment, where given."""
    named = choice.ca_file or (environment.ca_file if environment else None)
    found = replace(endpoint, ca_file=named or endpoint.ca_file)
    if choice.token:
        return replace(found, token=choice.token, identified_by="--token")
    if environment and environment.token:
        return replace(found, token=environment.token, identified_by="CSTP_TOKEN")
    return found


def agents_files(named: Path | None, configuration: Configuration) -> list[Path]:
    """Return the agents files there are, in the order in which they are searched."""
    if named:
        return [named]
    places = [
        Path(AGENTS_FILE),
        Path("~/.config/cstp").expanduser() / AGENTS_FILE,
        configuration.data_dir() / AGENTS_FILE,
    ]
    return [place for place in places if place.exists()]


def by_name(name: str, files: list[Path]) -> Endpoint:
    """Return the agent of a name from the first file that has it."""
    known: list[str] = []
    for path in files:
        agents = read_agents(path)
        if found := agents.find(name):
            return of_entry(found, agents.defaults, path)
        known += [agent.name for agent in agents.agents]
    if not files:
        raise click.UsageError(
            f"There is no agent {name!r}, because there is no {AGENTS_FILE}; --agent takes a URL too."
        )
    where = ", ".join(str(path) for path in files)
    raise click.UsageError(f"There is no agent {name!r} in {where}; there is: {', '.join(known) or 'none'}.")


def only_agent(path: Path) -> Endpoint:
    """Return the agent of a file that has one."""
    agents = read_agents(path)
    if len(agents.agents) != 1:
        names = ", ".join(agent.name for agent in agents.agents) or "none"
        raise click.UsageError(f"Say with --agent which agent of {path} to call; there is: {names}.")
    return of_entry(agents.agents[0], agents.defaults, path)


def local_server(configuration: Configuration) -> Endpoint:
    """Return this machine's own server, as `cstp serve --dev` describes it or else as it is configured."""
    described = configuration.data_dir() / AGENTS_FILE
    if described.exists() and (agents := read_agents(described)).agents:
        return replace(of_entry(agents.agents[0], agents.defaults, described), local=True)
    settings = configuration.settings()
    if settings.grpc.port == 0:
        raise ConfigError("grpc.port: is 0, so the port is not known; name the server with --agent grpc://HOST:PORT")
    address = join(reachable(settings.grpc.host), settings.grpc.port)
    # Our own server has the certificate that the settings name, whoever certifies it.
    tls = settings.grpc.tls
    url, ca_file = (f"grpcs://{address}", tls.certificate) if tls else (f"grpc://{address}", None)
    endpoint = Endpoint(url, "the configuration", local=True, ca_file=ca_file)
    if len(settings.auth.tokens) != 1:
        return endpoint
    token = settings.auth.tokens[0].token.get_secret_value()
    return replace(endpoint, token=token, identified_by="the configuration's auth.tokens")


def of_entry(entry: AgentEntry, defaults: Defaults, path: Path) -> Endpoint:
    """Return an agent of a file."""
    from cstp_grpc.config.yaml_file import expand_text

    origin = f"{entry.name} in {path}"
    url, ca_file = expand_text(entry.url, origin), authorities_of(entry, path)
    endpoint = Endpoint(url, origin, defaults=defaults, ca_file=ca_file)
    if entry.token is None:
        return endpoint
    token = expand_text(entry.token, origin)
    return replace(endpoint, token=token, identified_by=origin)


def authorities_of(entry: AgentEntry, path: Path) -> Path | None:
    """Return the file of the authorities that certify an agent, which is relative to the folder of the agents file."""
    return None if entry.ca_file is None else path.parent / entry.ca_file


def read_agents(path: Path) -> AgentsFile:
    """Return an agents file. Raises ConfigError."""
    # Not loaded before it is needed: a URL on the command line needs no file.
    from cstp_grpc.config.yaml_file import parse_yaml

    return AgentsFile.parse(parse_yaml(path), f"{path}: ")


def read_bytes(path: Path) -> bytes:
    """Return a file's content. Raises ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
