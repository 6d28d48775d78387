"""The `cstp liaison` commands: chat sessions and their routing to liaison agents."""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli.command_decorators import LIMIT, Command, enum_choice, object_options, stack_options, with_client
from cstp_grpc.cli.output import to_printable
from cstp_grpc.cli.protocol import EXIT_BLOCKED
from cstp_grpc.cli.rpc_commands import call_rpc, calls_rpc, lists_items, watches_changes
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.errors import PermissionDenied
from cstp_grpc.modules.liaison.model import AGENT_PREFIX, GUIDE, EventType, MessageRole, SessionStatus

if TYPE_CHECKING:
    from cstp_grpc.cli import liaison_output
    from cstp_grpc.cli.console import Console, Text
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.contract import json_codec
    from cstp_grpc.contract.calls import Json
    from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2
else:
    liaison_output = LazyModule("cstp_grpc.cli.liaison_output")
    json_codec = LazyModule("cstp_grpc.contract.json_codec")
    pb2 = LazyModule("cstp_grpc.gen.liaison.v1.liaison_pb2")

session_option = click.option(
    "--session", "chat_session_id", metavar="ID", help="The session. [default: the user's active one]"
)
user_option = click.option("--user", "user_id", metavar="ID", help="User of the session. [default: you]")
context_options = object_options(
    "--context",
    "context",
    "A member of the context; the value is JSON, or else a text.",
    "The context as one JSON object.",
)


claim_number_option = click.option(
    "--claim-number", type=click.IntRange(min=1), help="Number of your claim; refused unless it is current."
)


def with_session(command: Callable[..., None]) -> Command:
    """Add the options that name a session; the command gets its identifier as `session`."""

    @functools.wraps(command)
    def wrapper(
        client: CstpClient, out: Output, chat_session_id: str | None, user_id: str | None, **kwargs: Any
    ) -> None:
        # A user has at most one session that is active, so that the user's name is enough.
        command(client, out, session=chat_session_id or client.liaison.get_session(user_id=user_id).id, **kwargs)

    return stack_options(session_option, user_option)(wrapper)


@contextmanager
def exit_if_blocked(out: Output) -> Iterator[None]:
    """Print the guardrails that block and exit with EXIT_BLOCKED if the call is blocked."""
    try:
        yield
    except PermissionDenied as error:
        blocks = error.blocks
        # A missing permission, and not a guardrail.
        if not blocks:
            raise
        if out.json_wanted:
            from cstp_grpc.cli.error_hints import error_to_json

            out.print_error(error_to_json(error, None))
        else:
            out.show(lambda console: liaison_output.print_blocks(console, blocks))
        click.get_current_context().exit(EXIT_BLOCKED)


@click.group()
def liaison_group() -> None:
    """Hand chat sessions to liaison agents. A guide hands a session to the agent of a pillar, with its context.

    \b
    Examples:
      cstp liaison open --user ada --context shared_intent="migrate the reports"
      cstp liaison say "How do I move my reports?" --user ada
      cstp liaison route content --user ada --reason "The user wants to upload files"
      cstp liaison show --user ada
    """


@liaison_group.command()
@user_option
@click.option("--session", "chat_session_id", metavar="ID", help="Id of the new session. [default: random]")
@context_options
@calls_rpc("open_session")
def open_command(console: Console, answer: pb2.OpenSessionResponse) -> None:
    """Open a chat session with the guide. A user has at most one; repeating the command shows it.

    \b
    Examples:
      cstp liaison open --user ada
      cstp liaison open --user ada --session s-1 --context shared_intent="migrate the reports"
    """
    liaison_output.print_opened_session(console, answer)


@liaison_group.command()
@click.argument("text")
@click.option("--role", type=enum_choice(MessageRole), default=MessageRole.USER, show_default=True, help="Who speaks.")
@object_options(
    "--metadata",
    "metadata",
    "Structured data that belongs to it; the value is JSON, or else a text.",
    "The structured data as one JSON object.",
)
@click.option("--message-id", help="Idempotency key. [default: random]")
@claim_number_option
@with_client
@with_session
def say_command(client: CstpClient, out: Output, session: str, text: str, **fields: Any) -> None:
    """Append a message to a session.

    \b
    Examples:
      cstp liaison say "How do I move my reports?" --session s-1
      cstp liaison say "Upload them here." --session s-1 --role assistant --message-id m-2
    """
    answer = call_rpc(client, "append_message", chat_session_id=session, content=text, **fields)
    out.answer(answer, f"Message {answer.message.sequence} of {to_printable(session)}.")


@liaison_group.command()
@click.argument("pillar")
@session_option
@user_option
@click.option("--reason", "routing_reason", metavar="TEXT", help="Why.")
@object_options(
    "--context",
    "context_to_share",
    "A member of the context to share, in place of the whole conversation; the value is JSON, or else a text.",
    "The context to share as one JSON object.",
)
@with_client
def route_command(client: CstpClient, out: Output, pillar: str, **fields: Any) -> None:
    """Hand a session to a liaison agent. The session is with the guide; the agent is that of PILLAR and gets the
    context.

    Repeating it before the session is returned shows the first answer. Exit code 0 means that the agent has the
    session, 3 that a guardrail blocks it, 1 an error; codes 3 and 1 mean that nothing has changed.

    \b
    Examples:
      cstp liaison route content --session s-1 --reason "The user wants to upload files"
      cstp liaison route insights --user ada --context shared_intent="compare the reports" --context files=3
    """
    with exit_if_blocked(out):
        answer = client.liaison.route_to_liaison_agent(pillar, **fields)
    out.answer(answer, lambda console, found: liaison_output.print_routing_result(console, found))


@liaison_group.command()
@click.option("--reason", metavar="TEXT", help="Why.")
@claim_number_option
@with_client
@with_session
def return_command(client: CstpClient, out: Output, session: str, reason: str | None, claim_number: int | None) -> None:
    """Give a session back to the guide.

    \b
    Example:
      cstp liaison return --session s-1 --reason "The files are uploaded"
    """
    answer = client.liaison.return_to_guide(session, reason=reason, claim_number=claim_number)
    out.answer(answer, f"{to_printable(session)} is with the guide.")


@liaison_group.command()
@session_option
@user_option
@with_client
def show_command(client: CstpClient, out: Output, chat_session_id: str | None, user_id: str | None) -> None:
    """Show a session and its conversation. Its last routing is shown, too.

    \b
    Examples:
      cstp liaison show --session s-1
      cstp liaison show --user ada --json
    """
    found = client.liaison.get_session(chat_session_id, user_id=user_id)
    messages = list(client.liaison.list_messages(found.id, page_size=100))
    routing, share = find_last_routing(client, found.id)
    if out.json_wanted:
        out.document(
            {
                **json_codec.to_json(pb2.GetSessionResponse(chat_session=found)),
                "messages": [json_codec.to_json(message) for message in messages],
                **({"routing": json_codec.to_json(routing)} if routing else {}),
                **({"share": json_codec.to_json(share)} if share else {}),
            }
        )
        return
    out.show(lambda console: liaison_output.print_session(console, found))
    out.show(lambda console: liaison_output.print_conversation(console, messages))
    if routing:
        out.show(lambda console: liaison_output.print_last_routing(console, routing, share))


def find_last_routing(client: CstpClient, session: str) -> tuple[pb2.Event | None, pb2.Share | None]:
    events = client.liaison.list_events(
        chat_session_id=session, types=[EventType.LIAISON_AGENT_ACTIVATED], page_size=100
    )
    # The listing is oldest first, so that the last one is at its end.
    last = deque(events, maxlen=1)
    if not last:
        return None, None
    return last[0], client.liaison.get_share(str(last[0].data["share_id"]))


def check_events(client: CstpClient, **fields: Any) -> None:
    """Read an event, which fails where a watch with these filters would."""
    next(client.liaison.list_events(**{**fields, "after": 0, "page_size": 1}), None)


@liaison_group.command()
@click.option("--session", "chat_session_id", metavar="ID", help="Only events of this session.")
@click.option("--with", "agent", metavar="AGENT", help="Only events of this agent, for instance liaison_content.")
@click.option("--type", "types", type=enum_choice(EventType), multiple=True, help="Only this; repeatable.")
@click.option(
    "--after",
    type=click.IntRange(min=0),
    metavar="N",
    help="Start after this sequence number; 0 starts at the first event.",
)
@click.option("--limit", type=LIMIT, metavar="N", help="Stop after this number of events.")
@watches_changes("liaison.watch_events", check=check_events)
def watch_command(event: pb2.Event) -> Text:
    """Watch the events of sessions until Ctrl-C. With --json, prints one object per line.

    Without --after, it starts now. If the server goes away, the watch waits and continues.

    \b
    Examples:
      cstp liaison watch
      cstp liaison watch --after 0 --with liaison_content --type liaison_agent_activated --json
    """
    return liaison_output.event_line(event)


@liaison_group.command()
@click.option("--user", "user_id", metavar="ID", help="Only those of this user.")
@click.option(
    "--with", "active_agent", metavar="AGENT", help="Only those that this agent has, for instance liaison_content."
)
@click.option("--status", type=enum_choice(SessionStatus), help="Only active or only closed sessions.")
@lists_items("liaison.list_sessions", max_page=100)
def list_command(console: Console, answer: pb2.ListSessionsResponse) -> None:
    """List sessions, last opened first. Lists those of your tenant.

    \b
    Examples:
      cstp liaison list --status active
      cstp liaison list --with liaison_content --json
    """
    liaison_output.print_sessions(console, answer.chat_sessions)


@liaison_group.command()
@with_client
@with_session
def close_command(client: CstpClient, out: Output, session: str) -> None:
    """Close a session for good.

    \b
    Example:
      cstp liaison close --session s-1
    """
    answer = call_rpc(client, "close_session", chat_session_id=session)
    out.answer(answer, f"{to_printable(answer.chat_session.id)} is closed.")


@liaison_group.command()
@click.option("--session", metavar="ID", help="The session to delete.")
@click.option("--user", "user_id", metavar="ID", help="Delete all sessions of this user.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def delete_command(client: CstpClient, out: Output, session: str | None, user_id: str | None, yes: bool) -> None:
    """Delete a session, or all of a user. Deletes everything stored about them.

    Messages, shared contexts and events are deleted; the audit trail records the deletion. It cannot be undone.

    \b
    Examples:
      cstp liaison delete --session s-1
      cstp liaison delete --user ada --yes
    """
    if (session is None) == (user_id is None):
        raise click.UsageError("Name either --session ID or --user ID.")
    what = f"the session {session}" if session is not None else f"all sessions of {user_id}"
    if not yes:
        # A script must not hang on a question, and must not delete without having said so.
        if out.json_wanted or not (sys.stdin and sys.stdin.isatty()):
            raise click.UsageError("Pass --yes: there is no terminal to confirm on.")
        click.confirm(f"Delete {to_printable(what)} for good?", abort=True, err=True)
    if session is not None:
        one = client.liaison.delete_session(session)
        name = to_printable(session)
        out.answer(one, f"{name} is deleted." if one.deleted else f"There is no session {name}.")
    elif user_id is not None:
        several = client.liaison.delete_user_sessions(user_id)
        out.answer(several, f"Deleted {count_noun(several.deleted, 'session')} of {to_printable(user_id)}.")


@liaison_group.command()
@click.argument("pillar")
@click.option("--from", "source", default=GUIDE, show_default=True, metavar="AGENT", help="Who shares it.")
@context_options
@click.option("--conversation", metavar="ID", help="The conversation that it belongs to, as the source names it.")
@click.option("--key", metavar="KEY", help="Idempotency key. [default: the shared content]")
@with_client
def share_command(
    client: CstpClient,
    out: Output,
    pillar: str,
    source: str,
    context: dict[str, Json] | None,
    conversation: str | None,
    key: str | None,
) -> None:
    """Share a context with a liaison agent. No session is handed over; repeating a context shares it once.

    Exit code 0 means that it is shared, 3 that a guardrail blocks it, 1 an error.

    \b
    Example:
      cstp liaison share content --context shared_intent="migrate the reports"
    """
    if context is None:
        raise click.UsageError("Give the context to share with --context or --context-json.")
    target = pillar if pillar.startswith(AGENT_PREFIX) else AGENT_PREFIX + pillar
    with exit_if_blocked(out):
        answer = client.liaison.share_context_to_agent(
            source, target, context, conversation_id=conversation, idempotency_key=key
        )
    out.answer(answer, lambda console, shared: liaison_output.print_share(console, shared.share))


@liaison_group.command()
@click.option("--claimant", metavar="NAME", help="The instance that takes it. [default: you]")
@with_client
@with_session
def claim_command(client: CstpClient, out: Output, session: str, claimant: str | None) -> None:
    """Take a session that was handed over. Shows the context that came with it. You are the local liaison agent of
    its pillar.

    \b
    Example:
      cstp liaison claim --session s-1 --claimant content-agent-1
    """
    answer = client.liaison.claim_session(session, claimant=claimant)
    out.answer(answer, lambda console, found: liaison_output.print_claim(console, found))


@liaison_group.command()
@click.argument("target_pillar", metavar="[PILLAR]", required=False)
@calls_rpc("list_liaison_agents")
def agents_command(console: Console, answer: pb2.ListLiaisonAgentsResponse) -> None:
    """List liaison agents. Shows whether each is present and how many sessions it has. [default: all pillars]

    \b
    Examples:
      cstp liaison agents
      cstp liaison agents content --json
    """
    liaison_output.print_agents(console, answer.liaison_agents)


@liaison_group.command()
@click.argument("target_pillar", metavar="PILLAR")
@click.option("--leaving", is_flag=True, help="Report that the agent leaves.")
@calls_rpc("heartbeat")
def heartbeat_command(console: Console, answer: pb2.HeartbeatResponse) -> None:
    """Report that a liaison agent is present. It is the local agent of PILLAR.

    Repeat it: after some time without a report, the agent counts as unavailable.

    \b
    Examples:
      cstp liaison heartbeat content
      while cstp liaison heartbeat content; do sleep 10; done
    """
    liaison_output.print_heartbeat(console, answer)
