"""Events and answers of hooks, the same for all agents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum, auto
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Protocol


class HookMoment(Enum):
    """The moments at which an agent runs its hooks."""

    SESSION_STARTED = auto()
    PROMPT_SUBMITTED = auto()
    BEFORE_TOOL = auto()
    AFTER_TOOL = auto()
    TURN_ENDED = auto()
    OTHER = auto()
    """Any other event: the answer is empty."""


class HookEvent(NamedTuple):
    """An event of an agent's session; members that the moment does not have are empty."""

    moment: HookMoment
    name: str = ""
    """The name of the event, as the agent spells it; empty if the event could not be read."""
    tool: str = ""
    """The name of the tool, as the agent spells it."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    call_id: str = ""
    """The agent's id of the tool call, which links its end to its start."""
    failed: bool = False
    """After a tool: whether it failed."""
    prompt: str = ""
    """The user's prompt."""
    last_message: str = ""
    """At the end of a turn: the agent's last message."""
    continued: bool = False
    """At the end of a turn: whether a hook has already kept the agent from ending it."""
    folder: str = ""
    """The folder of the project, an absolute path."""


class HookDecision(Enum):
    """The decision on a tool call. There is no `allow`: it would skip the questions that the agent itself asks."""

    NONE = auto()
    """The agent goes on as it would without the hook."""
    ASK = auto()
    """The agent asks its user."""
    DENY = auto()
    """The tool is not called."""


class HookAnswer(NamedTuple):
    """The answer to an event; empty by default."""

    decision: HookDecision = HookDecision.NONE
    reason: str = ""
    """Why the call is asked about or denied, or the task to do before the turn may end."""
    context: str = ""
    """The context for the model."""
    notice: str = ""
    """The notice for the user."""
    keep_going: bool = False
    """At the end of a turn: whether the agent must first do the task in `reason`."""


Settings = Mapping[str, Any]
"""A JSON object in the settings of an agent."""


class ReadEvent(Protocol):
    """Reads the events of an agent."""

    def __call__(self, payload: Mapping[str, Any], project_folder: str | None = None) -> HookEvent:
        """Return the event of a payload; `project_folder` is the value of the agent's variable.

        Raises ValueError for an invalid payload.
        """


class WantedHooks(Protocol):
    """Describes the hooks in the settings of an agent."""

    def __call__(self, command: str, *, seconds: float, every_tool: bool = False) -> Mapping[str, Settings]:
        """Return the entries that the settings need for each event: a hook, or a group of hooks.

        `seconds` is the time limit of the command. With `every_tool`, hooks run for all tools, which a custom table of
        tools may need.
        """


class WritePlugin(Protocol):
    """Writes the plugin with which an agent runs hooks that are not in its settings."""

    def __call__(self, words: Sequence[str], *, seconds: float, every_tool: bool = False) -> str:
        """Return the text of a file that begins with PLUGIN_MARK and runs the command with these words."""


MAX_PAYLOAD_BYTES: Final = 16 * 1024 * 1024
"""Maximum size of a payload. Chosen: larger than any file that agents write, since a payload contains the file."""
PLUGIN_MARK: Final = "// Written by `cstp install`; `cstp uninstall` removes it.\n"


class HookHost(NamedTuple):
    """A coding agent that runs hooks: how to read its events, write its answers and make its settings."""

    read_event: ReadEvent
    write_answer: Callable[[HookEvent, HookAnswer], dict[str, Any]]
    """Returns the answer to an event as the agent reads it."""
    tools: Mapping[str, Any]
    """The packaged table of its tools, in the format of a file."""
    settings_files: Mapping[str, str]
    """The files with its hooks by scope, the default scope first."""
    wanted_hooks: WantedHooks = lambda *_, **__: {}
    """The hooks in its settings; empty if they are in a plugin."""
    empty_settings: str = "{\n}\n"
    """The content of a new settings file."""
    installation_note: str | None = None
    """The step that its user must take before it runs an installed hook; None if it runs in each new session."""
    tells_before_tool: bool = True
    """Whether its model can get context before a tool is called; otherwise that comes with the tool's result."""
    hears_last_message: bool = True
    """Whether its payloads contain the agent's last message."""
    shows_notices: bool = True
    """Whether it shows notices to its user; otherwise they go to standard error, for the agent's log of hooks."""
    waiting_program: str | None = None
    """The name of its program if that waits forever for an answer that its user cannot give."""
    write_plugin: WritePlugin | None = None
    """Writes its file if that is a plugin, which has no other hooks; None for a settings file."""
    project_folder_variable: str | None = None
    """The environment variable with the folder in which the session started; the folder in payloads may change."""
