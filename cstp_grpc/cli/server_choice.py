"""The choice of the server that a command calls, and of its token: options, the agents file and the configuration.

The checks of the agents file are written by hand: most commands read it, and importing a validation library would take
longer than the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from cstp_grpc.client.targets import FOLDER_SCHEME, is_folder_target
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.contract.limits import MAX_NAME_CHARACTERS
from cstp_grpc.platform.config.environment import dial_host, join_host_port

if TYPE_CHECKING:
    import click

    from cstp_grpc.client import AsyncCstpClient, CstpClient
    from cstp_grpc.client.json_client import JsonClient
    from cstp_grpc.platform.config import CommandEnvironment, Settings
else:
    # A hook needs it only to report a mistake.
    click = LazyModule("click")

MAX_RETRIES: Final = 20
"""Maximum number of retries of a call."""


class AgentEntry(NamedTuple):
    """An agent that can be called."""

    name: str
    """The name to call it by."""
    url: str
    """The address of the agent: `grpc://`, `grpcs://`, or a bridge's `http://` or `https://`."""
    token: str | None = None
    """The bearer token; `${NAME}` takes it from the environment."""
    ca_file: Path | None = None
    """A PEM file of the certificate authorities to trust instead of the system's."""
    client_certificate: Path | None = None
    """A PEM file with the certificate to show the agent, and its key."""

    def __repr__(self) -> str:
        """Return the name alone, since the token is a secret."""
        return f"AgentEntry({self.name!r})"


class AgentCallDefaults(NamedTuple):
    """Settings for calls to every agent."""

    timeout_seconds: float = 30.0
    """How long a call may take, retries included."""
    retry_count: int = 3
    """How often a call that failed for a transient reason is retried."""


class AgentsFile(NamedTuple):
    """The content of an agents file."""

    agents: tuple[AgentEntry, ...] = ()
    """The agents; names are unique."""
    defaults: AgentCallDefaults = AgentCallDefaults()
    """Settings for calls to every agent."""

    @classmethod
    def parse(cls, content: Mapping[str, Any], where: str = "", folder: Path = Path()) -> AgentsFile:
        """Parse the content of an agents file; its relative paths begin at `folder`.

        Raises ConfigError with one line for each invalid key, prefixed with `where`; no line contains a value.
        """
        if problems := list(find_file_problems(content)):
            raise ConfigError("\n".join(where + problem for problem in problems))
        entries = (
            {key: folder / value if key in PATH_KEYS and value is not None else value for key, value in entry.items()}
            for entry in content.get("agents", ())
        )
        return cls(tuple(AgentEntry(**entry) for entry in entries), AgentCallDefaults(**content.get("defaults", {})))

    def find(self, name: str) -> AgentEntry | None:
        return next((agent for agent in self.agents if agent.name == name), None)


Check: TypeAlias = tuple[Callable[[Any], bool], str]
"""Whether a value is valid, and what is wrong with another one."""

LIST: Final[Check] = (lambda value: isinstance(value, list), "must be a list")
MAPPING: Final[Check] = (lambda value: isinstance(value, Mapping), "must be a mapping")
TEXT: Final[Check] = (lambda value: isinstance(value, str) and value != "", "must be a text that is not empty")
OPTIONAL_TEXT: Final[Check] = (lambda value: value is None or isinstance(value, str), "must be a text")
SHORT: Final[Check] = (
    lambda value: len(value) <= MAX_NAME_CHARACTERS,
    f"must have at most {MAX_NAME_CHARACTERS} characters",
)
# By their types: bool is a subclass of int, but no number in YAML. `.nan` is not greater than 0; `.inf` means no limit.
SECONDS: Final[Check] = (
    lambda value: type(value) in (int, float) and value > 0,
    "must be a number of seconds greater than 0",
)
RETRIES: Final[Check] = (
    lambda value: type(value) is int and 0 <= value <= MAX_RETRIES,
    f"must be a whole number from 0 to {MAX_RETRIES}",
)

Checks: TypeAlias = Mapping[str, Sequence[Check]]
"""The checks of the value of each known key, in their order."""
FILE_CHECKS: Final[Checks] = {"agents": [LIST], "defaults": [MAPPING]}
ENTRY_CHECKS: Final[Checks] = {
    "name": [TEXT, SHORT],
    "url": [TEXT],
    "token": [OPTIONAL_TEXT],
    "ca_file": [OPTIONAL_TEXT],
    "client_certificate": [OPTIONAL_TEXT],
}
DEFAULTS_CHECKS: Final[Checks] = {"timeout_seconds": [SECONDS], "retry_count": [RETRIES]}
REQUIRED_ENTRY_KEYS: Final = ("name", "url")
PATH_KEYS: Final = ("ca_file", "client_certificate")


def find_file_problems(content: Mapping[str, Any]) -> Iterator[str]:
    yield from find_mapping_problems(content, "", FILE_CHECKS)
    agents, defaults = content.get("agents"), content.get("defaults")
    entries = agents if isinstance(agents, list) else []
    for number, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            yield f"agents.{number}: {MAPPING[1]}"
        else:
            yield from find_mapping_problems(entry, f"agents.{number}.", ENTRY_CHECKS, REQUIRED_ENTRY_KEYS)
    names = [entry["name"] for entry in entries if isinstance(entry, Mapping) and isinstance(entry.get("name"), str)]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        yield f"agents: named more than once: {', '.join(duplicates)}"
    if isinstance(defaults, Mapping):
        yield from find_mapping_problems(defaults, "defaults.", DEFAULTS_CHECKS)


def find_mapping_problems(
    content: Mapping[Any, Any], prefix: str, checks: Checks, required: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield one line for each invalid key of a mapping; `prefix` precedes the key's name."""
    for key in required:
        if key not in content:
            yield f"{prefix}{key}: must be given"
    for key, value in content.items():
        if key not in checks:
            # Imported here: only a mistake needs it.
            import difflib

            meant = difflib.get_close_matches(str(key), checks, n=1)
            yield f"{prefix}{key}: is not a known setting{f'; did you mean `{meant[0]}`?' if meant else ''}"
        elif problem := next((problem for is_valid, problem in checks[key] if not is_valid(value)), None):
            yield f"{prefix}{key}: {problem}"


AGENTS_FILE = "agents.yaml"


class Endpoint(NamedTuple):
    """A server to call; `origin` names the source of its URL, `identified_by` the source of its token."""

    url: str
    origin: str
    token: str | None = None
    identified_by: str = ""
    local: bool = False
    """True for this machine's own server."""
    defaults: AgentCallDefaults = AgentCallDefaults()
    ca_file: Path | None = None
    """A PEM file of the authorities that certify it; None means those of the system."""
    client_certificate: Path | None = None
    """A PEM file with the certificate that the server is shown, and its key."""
    identity: str | None = None
    """The agent to act as where there is no server, which would know it by its token."""
    config: Path | None = None
    """The configuration of a data folder that is used without a server."""

    @property
    def is_folder(self) -> bool:
        """Whether it is a data folder, used in this process, and no server."""
        return is_folder_target(self.url)

    def connect(self, timeout: float | None) -> CstpClient:
        """Return a client. Raises InvalidArgument and ConfigError."""
        from cstp_grpc.client.cstp_client import CstpClient

        return CstpClient(self.url, self.token, **self._client_options(timeout))

    def connect_json(self, timeout: float | None) -> JsonClient:
        """Return a client of methods by their JSON-RPC names. Raises InvalidArgument and ConfigError."""
        from cstp_grpc.client.json_client import open_json_client

        return open_json_client(self.url, self.token, **self._client_options(timeout))

    def connect_async(self, timeout: float | None) -> AsyncCstpClient:
        """Return a client for an event loop. Raises InvalidArgument, also for a bridge's URL, and ConfigError."""
        from cstp_grpc.client.async_client import AsyncCstpClient

        return AsyncCstpClient(self.url, self.token, **self._client_options(timeout))

    def _client_options(self, timeout: float | None) -> dict[str, Any]:
        """Return the options that both kinds of client take. Raises ConfigError."""
        from cstp_grpc.client.retry import RetryPolicy

        return {
            "timeout": self.defaults.timeout_seconds if timeout is None else timeout,
            "retries": RetryPolicy(attempts=self.defaults.retry_count + 1),
            "root_certificates": None if self.ca_file is None else read_ca_file(self.ca_file),
            "client_certificate": self.client_certificate,
            "agent": self.identity,
            "config": self.config,
        }


class ServerChoice(NamedTuple):
    """The server options of the command line."""

    agent: str | None = None
    token: str | None = None
    agents_file: Path | None = None
    ca_file: Path | None = None
    local: bool = False
    """True to call no server, and use the configured data folder in this process."""
    identity: str | None = None
    """The agent to act as without a server."""
    role: str | None = None
    """The agent of this machine's own server to act as, if its agents file has it."""

    @property
    def is_made(self) -> bool:
        """Whether any of the options that choose a server is given."""
        return self._replace(local=False, identity=None, role=None) != ServerChoice()


class ConfigurationSource(Protocol):
    """The configuration, loaded only as far as needed: loading all of it takes longer than most calls."""

    @property
    def config_path(self) -> Path | None: ...
    def data_dir(self) -> Path: ...
    def settings(self) -> Settings: ...


def choose_server(
    choice: ServerChoice, environment: CommandEnvironment, configuration: ConfigurationSource
) -> Endpoint:
    """Return the server to call. Raises ConfigError and click.UsageError.

    A URL is used as it is, a name is looked up in the agents files. Without either it is the only agent of the given
    agents file, or else this machine's own server. With `local` it is no server, but the configured data folder.
    """
    if choice.local:
        if choice.is_made:
            raise click.UsageError("--local asks no server; options that choose one have no meaning.")
        return local_folder(Endpoint(FOLDER_SCHEME, "--local"), choice, configuration)
    endpoint = choose_endpoint(choice, environment, configuration)
    if endpoint.is_folder:
        return local_folder(endpoint, choice, configuration)
    if choice.identity is not None:
        raise click.UsageError("--as is for --local: a server knows its callers by their tokens.")
    return endpoint


def choose_endpoint(
    choice: ServerChoice, environment: CommandEnvironment, configuration: ConfigurationSource
) -> Endpoint:
    """Return the endpoint that the options, the environment or the files name; see `choose_server`."""
    named_file = choice.agents_file or environment.agents_file
    if choice.agent and is_folder_target(choice.agent):
        # Without the environment's token, which is for a server.
        return with_overrides(Endpoint(choice.agent, "--agent"), choice)
    if choice.agent and "://" in choice.agent:
        return with_overrides(Endpoint(choice.agent, "--agent"), choice, environment)
    if choice.agent:
        return with_overrides(find_agent(choice.agent, existing_agents_files(named_file, configuration)), choice)
    if named_file:
        return with_overrides(only_agent(named_file), choice)
    return with_overrides(local_server(configuration, choice.role), choice, environment)


def local_folder(endpoint: Endpoint, choice: ServerChoice, configuration: ConfigurationSource) -> Endpoint:
    return endpoint._replace(local=True, identity=choice.identity, config=configuration.config_path)


def with_overrides(endpoint: Endpoint, choice: ServerChoice, environment: CommandEnvironment | None = None) -> Endpoint:
    # The environment's token is only for servers that no agents file describes: it must not go to every named agent.
    ca_file = choice.ca_file or (environment.ca_file if environment else None)
    shown = (environment.client_certificate if environment else None) or endpoint.client_certificate
    overridden = endpoint._replace(ca_file=ca_file or endpoint.ca_file, client_certificate=shown)
    if choice.token:
        return overridden._replace(token=choice.token, identified_by="--token")
    if environment and environment.token:
        return overridden._replace(token=environment.token, identified_by="CSTP_TOKEN")
    return overridden


def existing_agents_files(named: Path | None, configuration: ConfigurationSource) -> list[Path]:
    if named:
        return [named]
    candidates = [
        Path(AGENTS_FILE),
        Path("~/.config/cstp").expanduser() / AGENTS_FILE,
        configuration.data_dir() / AGENTS_FILE,
    ]
    return [path for path in candidates if path.exists()]


def find_agent(name: str, files: list[Path]) -> Endpoint:
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
    """Return the only agent of a file, apart from the approver of a developer's server."""
    from cstp_grpc.contract.caller import APPROVER

    agents = read_agents(path)
    candidates = [agent for agent in agents.agents if agent.name != APPROVER]
    if len(candidates) != 1:
        names = ", ".join(agent.name for agent in agents.agents) or "none"
        raise click.UsageError(f"Choose an agent of {path} with --agent: {names}.")
    return endpoint_of_entry(candidates[0], agents.defaults, path)


def local_server(configuration: ConfigurationSource, role: str | None = None) -> Endpoint:
    """Return this machine's own server, from the developer's agents file or else from the settings."""
    described = configuration.data_dir() / AGENTS_FILE
    # `cstp serve --dev` writes it at each start. It is far quicker to read than the settings, and has the port if that
    # is 0.
    if described.exists() and (agents := read_agents(described)).agents:
        entry = (role and agents.find(role)) or agents.agents[0]
        return endpoint_of_entry(entry, agents.defaults, described)._replace(local=True)
    settings = configuration.settings()
    if settings.grpc.port == 0:
        raise ConfigError("grpc.port: is 0, so the port is not known; name the server with --agent grpc://HOST:PORT")
    address = join_host_port(dial_host(settings.grpc.host), settings.grpc.port)
    # Our own server's certificate is trusted as it is, also if it is self-signed.
    tls = settings.grpc.tls
    url, ca_file = (f"grpcs://{address}", tls.certificate) if tls else (f"grpc://{address}", None)
    endpoint = Endpoint(url, "the configuration", local=True, ca_file=ca_file)
    # Of several tokens none may be chosen for the caller, who would act as another agent without a word.
    if len(settings.auth.tokens) != 1:
        return endpoint
    token = settings.auth.tokens[0].token.get_secret_value()
    return endpoint._replace(token=token, identified_by="the configuration's auth.tokens")


def endpoint_of_entry(entry: AgentEntry, defaults: AgentCallDefaults, path: Path) -> Endpoint:
    origin = f"{entry.name} in {path}"
    endpoint = Endpoint(
        expand_text(entry.url, origin),
        origin,
        defaults=defaults,
        ca_file=entry.ca_file,
        client_certificate=entry.client_certificate,
    )
    if entry.token is None:
        return endpoint
    return endpoint._replace(token=expand_text(entry.token, origin), identified_by=origin)


def expand_text(text: str, origin: str) -> str:
    """Return a text of an agents file with its references to the environment replaced. Raises ConfigError."""
    if "${" not in text:
        return text
    from cstp_grpc.platform.config import yaml_file

    return yaml_file.expand_text(text, origin)


def read_agents(path: Path) -> AgentsFile:
    """Return an agents file. Raises ConfigError."""
    content = read_json_object(path)
    if content is None:
        # Imported here: it takes longer than the call, and a URL on the command line needs no file.
        from cstp_grpc.platform.config.yaml_file import parse_yaml

        content = parse_yaml(path)
    return AgentsFile.parse(content, f"{path}: ", path.parent)


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the object in a file that is JSON, as `cstp serve --dev` writes it, or None for any other file."""

    def refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content = dict(pairs)
        if len(content) < len(pairs):
            raise ValueError
        return content

    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=refuse_duplicates)
    except (OSError, ValueError, RecursionError):
        # The reader of YAML reports it.
        return None
    return content if isinstance(content, dict) else None


def read_ca_file(path: Path) -> bytes:
    """Return a file's content. Raises ConfigError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
