"""Conversion between invocations and messages of the contract, for servicers."""

from __future__ import annotations

from typing import Any

from cstp_grpc.contract.enums import Shell
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.core.commands.model import NO_INVOCATION, Invocation
from cstp_grpc.gen.cstp.v1 import commands_pb2, cstp_pb2

SHELL = EnumMapping(commands_pb2.Shell, Shell)


def parse_invocation_fields(message: cstp_pb2.Action | cstp_pb2.AnnounceIntentRequest) -> Invocation:
    """Parse the command of an action and the files that its tool accesses."""
    # Most actions have none.
    if not (message.command or message.reads or message.writes):
        return NO_INVOCATION
    return Invocation(
        command=message.command,
        shell=SHELL.word(message.shell) or Shell.BASH,
        directory=message.directory,
        reads=tuple(message.reads),
        writes=tuple(message.writes),
    )


def invocation_fields(invocation: Invocation) -> dict[str, Any]:
    """Return the fields of an action that state its command and files; none without them."""
    if invocation is NO_INVOCATION:
        return {}
    return {
        "command": invocation.command or None,
        "shell": SHELL.number(invocation.shell) if invocation.command else None,
        "directory": invocation.directory or None,
        "reads": invocation.reads,
        "writes": invocation.writes,
    }
