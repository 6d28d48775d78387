"""The command that runs the console."""

from __future__ import annotations

import json
import os
import socket
import sys
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import config_option, current_state, server_options
from cstp_grpc.common.extras import require_extra
from cstp_grpc.platform.child_process import PYTHON_COMMAND
from cstp_grpc.platform.config.environment import command_environment

if TYPE_CHECKING:
    from cstp_grpc.cli.server_choice import ServerChoice


@click.command()
@click.option("--dev", is_flag=True, help="Print a link that signs you in once, with the token of this command.")
@click.option("--insecure", is_flag=True, help="Listen beyond loopback without TLS; tokens travel unencrypted.")
@server_options
@config_option
def console_command(dev: bool, insecure: bool, choice: ServerChoice, timeout: float | None) -> None:  # noqa: ARG001
    """Run the console, pages for people. People sign in with their tokens of the server. Ctrl-C or SIGTERM stops it.

    \b
    Examples:
      cstp console --dev
      cstp console --config cstp.yaml --agent grpcs://cstp.example.com:50051
    """
    require_extra("console")
    from cstp_grpc.cli.server_choice import choose_server
    from cstp_grpc.platform.config.exposure import CONSOLE_LISTENERS, allow_plain_listeners, check_listeners

    state = current_state()
    settings = state.settings()
    check_listeners(allow_plain_listeners(settings) if insecure else settings, CONSOLE_LISTENERS)
    endpoint = choose_server(choice, command_environment(), state)
    if endpoint.is_folder or endpoint.url.startswith(("http://", "https://")):
        raise click.UsageError("The console calls a server over gRPC; name it with --agent grpc[s]://HOST:PORT.")
    task = {
        "target": endpoint.url,
        "ca_file": str(endpoint.ca_file) if endpoint.ca_file else None,
        "client_certificate": str(endpoint.client_certificate) if endpoint.client_certificate else None,
        "link": dev,
        "token": endpoint.token if dev else None,
        "announce": True,
    }
    ours, theirs = socket.socketpair()
    ours.sendall(json.dumps(task).encode())
    # The socket of this program is closed by exec, so that the console, which needs no parent, reports to nobody.
    ours.shutdown(socket.SHUT_WR)
    os.set_inheritable(theirs.fileno(), True)  # noqa: FBT003 - it takes no keyword
    arguments = ["--task-fd", str(theirs.fileno())]
    if state.config_path:
        arguments += ["--config", str(state.config_path)]
    os.execv(sys.executable, [*PYTHON_COMMAND, "console", *arguments])  # noqa: S606 - no shell is wanted
