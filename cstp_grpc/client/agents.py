"""The agents file: which agents can be called, where, and with which tokens.

Its checks are written by hand: most commands read it, and loading a library for them would take longer than the call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cstp_grpc.errors import ConfigError

MAX_NAME: Final = 200
"""Characters of an agent's name."""
MAX_RETRIES: Final = 20
"""How often a call may be repeated at the most."""


@dataclass(frozen=True, slots=True)
class AgentEntry:
    """An agent that can be called."""

    name: str
    """The name to call it by."""
    url: str
    """Where it answers: `grpc://`, `grpcs://`, or a bridge's `http://` or `https://`."""
    token: str | None = field(default=None, repr=False)
    """The bearer token; `${NAME}` takes it from the environment."""
    ca_file: Path | None = None
    """A PEM file of the authorities that certify it, in place of the system's; relative to the folder of this file."""


@dataclass(frozen=True, slots=True)
class Defaults:
    """How every agent is called."""

    timeout_seconds: float = 30.0
    """How long a call may take, repetitions included."""
    retry_count: int = 3
    """How often a call that failed for a passing reason is repeated."""


@dataclass(frozen=True, slots=True)
class AgentsFile:
    """The whole file."""

    agents: tuple[AgentEntry, ...] = ()
    """The agents; each name once."""
    defaults: Defaults = field(default_factory=Defaults)
    """How every agent is called."""

    @classmethod
    def parse(cls, content: Mapping[str, Any], where: str = "") -> AgentsFile:
        """Return what the content of a file says.

        Raises ConfigError with a line for each key that is wrong, which begins with `where`; no line shows a value.
        """
        if problems := list(problems_of_file(content)):
            raise ConfigError("\n".join(where + problem for problem in problems))
        return cls(tuple(map(entry_of, content.get("agents", ()))), Defaults(**content.get("defaults", {})))

    def find(self, name: str) -> AgentEntry | None:
        """Return the agent of a name; None where there is none."""
        return next((agent for agent in self.agents if agent.name == name), None)


def entry_of(content: Mapping[str, Any]) -> AgentEntry:
    """Return an agent of valid content."""
    ca_file = content.get("ca_file")
    return AgentEntry(content["name"], content["url"], content.get("token"), None if ca_file is None else Path(ca_file))


Check = Callable[[Any], str | None]
"""Returns what is wrong with a value; None if it is valid."""


def check_text(value: Any) -> str | None:
    """Refuse what is no text, and an empty one."""
    return None if isinstance(value, str) and value else "must be a text that is not empty"


def check_name(value: Any) -> str | None:
    """Refuse what is no name."""
    too_long = isinstance(value, str) and len(value) > MAX_NAME
    return f"must have at most {MAX_NAME} characters" if too_long else check_text(value)


def check_optional_text(value: Any) -> str | None:
    """Refuse what is neither a text nor null."""
    return None if value is None or isinstance(value, str) else "must be a text"


def check_seconds(value: Any) -> str | None:
    """Refuse what is no time to wait."""
    valid = is_number(value) and value > 0 and not math.isnan(value)
    return None if valid else "must be a number of seconds greater than 0"


def check_retries(value: Any) -> str | None:
    """Refuse what is no number of repetitions."""
    valid = is_number(value) and isinstance(value, int) and 0 <= value <= MAX_RETRIES
    return None if valid else f"must be a whole number from 0 to {MAX_RETRIES}"


def check_list(value: Any) -> str | None:
    """Refuse what is no list."""
    return None if isinstance(value, list) else "must be a list"


def check_mapping(value: Any) -> str | None:
    """Refuse what is no mapping."""
    return None if isinstance(value, Mapping) else "must be a mapping"


def is_number(value: Any) -> bool:
    """Whether a value of YAML is a number; in Python truth values are numbers too."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


FILE: Final[Mapping[str, Check]] = {"agents": check_list, "defaults": check_mapping}
ENTRY: Final[Mapping[str, Check]] = {
    "name": check_name,
    "url": check_text,
    "token": check_optional_text,
    "ca_file": check_optional_text,
}
REQUIRED: Final = ("name", "url")
DEFAULTS: Final[Mapping[str, Check]] = {"timeout_seconds": check_seconds, "retry_count": check_retries}


def problems_of_file(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the content of a file, a line for each key."""
    yield from problems_of_mapping(content, "", FILE)
    agents, defaults = content.get("agents"), content.get("defaults")
    entries = agents if isinstance(agents, list) else []
    for number, entry in enumerate(entries):
        if problem := check_mapping(entry):
            yield f"agents.{number}: {problem}"
        else:
            yield from problems_of_mapping(entry, f"agents.{number}.", ENTRY, REQUIRED)
    names = [entry["name"] for entry in entries if isinstance(entry, Mapping) and isinstance(entry.get("name"), str)]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        yield f"agents: named more than once: {', '.join(twice)}"
    if isinstance(defaults, Mapping):
        yield from problems_of_mapping(defaults, "defaults.", DEFAULTS)


def problems_of_mapping(
    content: Mapping[Any, Any], prefix: str, checks: Mapping[str, Check], required: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield what is wrong with a mapping, a line for each key, whose name follows a prefix."""
    for key in required:
        if key not in content:
            yield f"{prefix}{key}: must be given"
    for key, value in content.items():
        check = checks.get(key)
        if check is None:
            import difflib

            meant = difflib.get_close_matches(str(key), checks, n=1)
            yield f"{prefix}{key}: is not a known setting{f'; did you mean `{meant[0]}`?' if meant else ''}"
        elif problem := check(value):
            yield f"{prefix}{key}: {problem}"
