"""What a hook is told and what it answers, whichever agent runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, Protocol


class HookMoment(Enum):
    """When an agent runs its hooks, as far as they are answered."""

    SESSION_STARTED = auto()
    PROMPT_SUBMITTED = auto()
    BEFORE_TOOL = auto()
    AFTER_TOOL = auto()
    TURN_ENDED = auto()
    OTHER = auto()
    """Any other event: the answer is empty."""


@dataclass(frozen=True, slots=True)
class HookEvent:
    """An event of an agent's session; members that the moment does not have are empty."""

    moment: HookMoment
    name: str = ""
    """The name of the event, as the agent spells it; empty if the event could not be read."""
    tool: str = ""
    """The name of the tool, as the agent spells it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    call_id: str = ""
    """The agent's id of the tool call, by which its end is matched with its beginning."""
    failed: bool = False
    """After a tool: whether it failed."""
    prompt: str = ""
    """What the user asked for."""
    last_message: str = ""
    """At the end of a turn: what the agent said last."""
    continued: bool = False
    """At the end of a turn: whether a hook has kept the agent from ending it already."""
    folder: str = ""
    """The folder of the project, an absolute path."""


class HookDecision(Enum):
    """What becomes of a tool call. There is no `allow`: it would skip the questions that the agent itself asks."""

    NONE = auto()
    """The agent goes on as it would without the hook."""
    ASK = auto()
    """The agent asks its user."""
    DENY = auto()
    """The tool is not called."""


@dataclass(frozen=True, slots=True)
class HookAnswer:
    """The answer to an event; by default an empty one."""

    decision: HookDecision = HookDecision.NONE
    reason: str = ""
    """Why it is asked or denied, or what is to be done before the turn may end."""
    context: str = ""
    """What the model is told."""
    notice: str = ""
    """What the user is told."""
    keep_going: bool = False
    """At the end of a turn: whether the agent has something to do first, which `reason` says."""


Settings = Mapping[str, Any]
"""An object of JSON in the settings of an agent."""


class ReadEvent(Protocol):
    """Reads the events of an agent."""

    def __call__(self, payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
        """Return the event of a payload; `project_folder` is what the agent's variable names.

        Raises ValueError for what is no payload of a hook.
        """


class WantedHooks(Protocol):
    """Describes the hooks in the settings of an agent."""

    def __call__(self, command: str, *, seconds: float, every_tool: bool = False) -> Mapping[str, Settings]:
        """Return the entries that the settings need for each event: a hook, or a group of them.

        `seconds` is what the command takes at most. With `every_tool`, hooks run for all tools, as a table that is not
        the packaged one may need.
        """


class WritePlugin(Protocol):
    """Writes the plugin by which an agent runs hooks that are not in its settings."""

    def __call__(self, words: Sequence[str], *, seconds: float, every_tool: bool = False) -> str:
        """Return the text of a file that begins with PLUGIN_MARK and runs a command, given as its words."""


MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a payload. Chosen: above the largest file that agents write, whose content is part of it."""
PLUGIN_MARK: Final = "// Written by `cstp install`; `cstp uninstall` removes it.\n"


@dataclass(frozen=True, slots=True)
class HookHost:
    """A coding agent that runs hooks: how its events are read, its answers written and its settings made."""

    read_event: ReadEvent
    write_answer: Callable[[HookEvent, HookAnswer], dict[str, Any]]
    """Returns the answer to an event as the agent reads it."""
    tools: Mapping[str, Any]
    """The packaged table of its tools, in the form of a file."""
    settings_files: Mapping[str, str]
    """The files with its hooks by scope, the one that is meant without a scope first."""
    wanted_hooks: WantedHooks = lambda *_, **__: {}
    """The hooks in its settings; none if they are in a plugin."""
    empty_settings: str = "{\n}\n"
    """What such a file is that does not exist."""
    installation_note: str | None = None
    """What its user must do before it runs an installed hook; None if it runs in each new session."""
    tells_before_tool: bool = True
    """Whether its model can be told something before a tool is called; otherwise that comes with the tool's result."""
    hears_last_message: bool = True
    """Whether its hooks are told what the agent said last."""
    shows_notices: bool = True
    """Whether its user is shown notices; otherwise they are printed on standard error, for the agent's log of hooks."""
    waiting_program: str | None = None
    """The name of its program if that waits for ever for an answer that its user cannot give."""
    write_plugin: WritePlugin | None = None
    """Writes its file if that is a plugin, which has no other hooks; None if it is settings."""
    project_folder_variable: str | None = None
    """The environment variable with the folder in which the session was started; that of a payload may change."""
