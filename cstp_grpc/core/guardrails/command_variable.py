"""The variable `commands` of expressions: messages, whose fields the engine type-checks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from google.protobuf import descriptor_pool

from cstp_grpc.core.commands.parsing import parse_invocation
from cstp_grpc.core.commands.patterns import CommandPhrases
from cstp_grpc.gen.cstp.v1 import commands_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from cstp_grpc.core.commands.model import Command
    from cstp_grpc.core.guardrails.model import Action

COMMAND_TYPE: Final[str] = commands_pb2.Command.DESCRIPTOR.full_name
"""The type of an item."""
DESCRIPTORS: Final = descriptor_pool.Default()
"""The pool that knows the type."""
MAX_COMMAND_BYTES: Final = 24_000
"""Size of all commands together from which the rest is summed up as too large, so that every rule stays cheap."""


def command_message(command: Command, phrases: Iterable[str]) -> commands_pb2.Command:
    """Convert a command that begins with these phrases to a message."""
    return commands_pb2.Command(
        program=command.program,
        text=command.text,
        arguments=command.arguments,
        flags=command.flags,
        operands=command.operands,
        environment=command.environment,
        directory=command.directory,
        phrases=phrases,
        deletes=sorted(command.deletes),
        writes=sorted(command.writes),
        reads=sorted(command.reads),
        sql=sorted(command.sql),
        unresolved=sorted(command.unresolved),
        recursive=command.is_recursive,
        privileged=command.is_privileged,
        remote=command.is_remote,
        dry_run=command.is_dry_run,
        sends_out=command.sends_out,
    )


def commands_reader(phrases: Iterable[str]) -> Callable[[Action], list[commands_pb2.Command]]:
    """Return a function that parses the commands of an action, for rules that name them by these phrases."""
    known = CommandPhrases(phrases)

    def read(action: Action) -> list[commands_pb2.Command]:
        found: list[commands_pb2.Command] = []
        size = 0
        for command in parse_invocation(action.invocation):
            message = command_message(command, known.matching(command))
            size += message.ByteSize()
            if size > MAX_COMMAND_BYTES:
                # The effects count; the words of what is beyond the limit are left out.
                for field in ("arguments", "operands", "environment", "flags", "text", "directory"):
                    message.ClearField(field)
            found.append(message)
        return found

    return read
