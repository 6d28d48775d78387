"""What a hook is told and what it answers, whichever agent runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any


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
