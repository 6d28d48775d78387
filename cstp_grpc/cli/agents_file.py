"""Parse the agents file: which agents can be called, at which URLs, with which tokens.

The checks are written by hand: most commands read this file, and importing a validation library would take longer than
the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cstp_grpc.errors import ConfigError

MAX_NAME_CHARACTERS: Final = 200
"""Maximum length of an agent's name, in characters."""
MAX_RETRIES: Final = 20
"""Maximum number of retries of a call."""


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """An agent that can be called."""

    name: str
    """The name to call it by."""
    url: str
    """The address of the agent: `grpc://`, `grpcs://`, or a bridge's `http://` or `https://`."""
    token: str | None = field(default=None, repr=False)
    """The bearer token; `${NAME}` takes it from the environment."""
    ca_file: Path | None = None
    """A PEM file of the certificate authorities to trust instead of the system's; relative to the folder of this file.
    """


@dataclass(frozen=True, slots=True)
class AgentCallDefaults:
    """Settings for calls to every agent."""

    timeout_seconds: float = 30.0
    """How long a call may take, retries included."""
    retry_count: int = 3
    """How often a call that failed for a transient reason is retried."""


@dataclass(frozen=True, slots=True)
class AgentsFile:
    """The content of an agents file."""

    agents: tuple[AgentEntry, ...] = ()
    """The agents; names are unique."""
    defaults: AgentCallDefaults = field(default_factory=AgentCallDefaults)
    """Settings for calls to every agent."""

    @classmethod
    def parse(cls, content: Mapping[str, Any], where: str = "") -> AgentsFile:
        """Parse the content of an agents file.

        Raises ConfigError with one line for each invalid key, prefixed with `where`; no line contains a value.
        """
        if problems := list(find_file_problems(content)):
            raise ConfigError("\n".join(where + problem for problem in problems))
        return cls(tuple(map(parse_entry, content.get("agents", ()))), AgentCallDefaults(**content.get("defaults", {})))

    def find(self, name: str) -> AgentEntry | None:
        """Return the agent with a name, or None."""
        return next((agent for agent in self.agents if agent.name == name), None)


def parse_entry(content: Mapping[str, Any]) -> AgentEntry:
    """Return the agent described by valid content."""
    ca_file = content.get("ca_file")
    return AgentEntry(content["name"], content["url"], content.get("token"), None if ca_file is None else Path(ca_file))


CheckValue = Callable[[Any], str | None]
"""Returns the problem with a value, or None if it is valid."""


def check_text(value: Any) -> str | None:
    """Require a non-empty string."""
    return None if isinstance(value, str) and value else "must be a text that is not empty"


def check_name(value: Any) -> str | None:
    """Require a non-empty string of at most MAX_NAME_CHARACTERS."""
    too_long = isinstance(value, str) and len(value) > MAX_NAME_CHARACTERS
    return f"must have at most {MAX_NAME_CHARACTERS} characters" if too_long else check_text(value)


def check_optional_text(value: Any) -> str | None:
    """Require a string or null."""
    return None if value is None or isinstance(value, str) else "must be a text"


def check_seconds(value: Any) -> str | None:
    """Require a number of seconds greater than 0."""
    # YAML has `.nan`, which is neither greater nor less than 0; `.inf` means no limit.
    valid = is_number(value) and value > 0 and not math.isnan(value)
    return None if valid else "must be a number of seconds greater than 0"


def check_retries(value: Any) -> str | None:
    """Require a whole number from 0 to MAX_RETRIES."""
    valid = is_number(value) and isinstance(value, int) and 0 <= value <= MAX_RETRIES
    return None if valid else f"must be a whole number from 0 to {MAX_RETRIES}"


def check_list(value: Any) -> str | None:
    """Require a list."""
    return None if isinstance(value, list) else "must be a list"


def check_mapping(value: Any) -> str | None:
    """Require a mapping."""
    return None if isinstance(value, Mapping) else "must be a mapping"


def is_number(value: Any) -> bool:
    """Return whether a YAML value is a number; bool, a subclass of int in Python, is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


FILE_CHECKS: Final[Mapping[str, CheckValue]] = {"agents": check_list, "defaults": check_mapping}
ENTRY_CHECKS: Final[Mapping[str, CheckValue]] = {
    "name": check_name,
    "url": check_text,
    "token": check_optional_text,
    "ca_file": check_optional_text,
}
REQUIRED_ENTRY_KEYS: Final = ("name", "url")
DEFAULTS_CHECKS: Final[Mapping[str, CheckValue]] = {"timeout_seconds": check_seconds, "retry_count": check_retries}


def find_file_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield one line for each invalid key of a file."""
    yield from find_mapping_problems(content, "", FILE_CHECKS)
    agents, defaults = content.get("agents"), content.get("defaults")
    entries = agents if isinstance(agents, list) else []
    for number, entry in enumerate(entries):
        if problem := check_mapping(entry):
            yield f"agents.{number}: {problem}"
        else:
            yield from find_mapping_problems(entry, f"agents.{number}.", ENTRY_CHECKS, REQUIRED_ENTRY_KEYS)
    names = [entry["name"] for entry in entries if isinstance(entry, Mapping) and isinstance(entry.get("name"), str)]
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        yield f"agents: named more than once: {', '.join(duplicates)}"
    if isinstance(defaults, Mapping):
        yield from find_mapping_problems(defaults, "defaults.", DEFAULTS_CHECKS)


def find_mapping_problems(
    content: Mapping[Any, Any], prefix: str, checks: Mapping[str, CheckValue], required: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield one line for each invalid key of a mapping; `prefix` precedes the key's name."""
    for key in required:
        if key not in content:
            yield f"{prefix}{key}: must be given"
    for key, value in content.items():
        check = checks.get(key)
        if check is None:
            # Imported here: only a mistake needs it.
            import difflib

            meant = difflib.get_close_matches(str(key), checks, n=1)
            yield f"{prefix}{key}: is not a known setting{f'; did you mean `{meant[0]}`?' if meant else ''}"
        elif problem := check(value):
            yield f"{prefix}{key}: {problem}"
