"""The command that erases the data of an agent or of a subject."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from cstp_grpc.cli.command_decorators import with_client
from cstp_grpc.cli.output import to_printable
from cstp_grpc.common.counted_nouns import count_audit_contents, count_noun, count_nouns
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from cstp_grpc.cli.output import Output
    from cstp_grpc.client import CstpClient
    from cstp_grpc.gen.cstp.v1 import erasure_pb2
else:
    erasure_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.erasure_pb2")


@click.command()
@click.argument("name", metavar="[AGENT]", required=False)
@click.option("--subject", metavar="USER", help="Erase the data of this user of chat sessions instead.")
@click.option("--examples", is_flag=True, help="Erase the examples of `cstp serve --dev` instead.")
@click.option("--dry-run", is_flag=True, help="Show how much would be erased, and erase nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def erase_command(
    client: CstpClient, out: Output, name: str | None, subject: str | None, examples: bool, dry_run: bool, yes: bool
) -> None:
    """Erase everything of an agent. That is decisions, intents, requests, tasks, and its contents in the audit
    trail.

    With --subject, erase the data of a user of chat sessions of your tenant: the sessions with everything in them, and
    the contents of their entries in the audit trail. The amounts are shown before you confirm.

    With --examples, erase the examples of `cstp serve --dev`: the data of the example agents, and your imported
    decisions.

    It cannot be undone. Needs the permission admin. Revoke the tokens of the agent first, or it adds more data.
    Earlier backups still contain the erased data.

    \b
    Examples:
      cstp erase deployer --dry-run
      cstp erase deployer --yes
      cstp erase --subject u-17 --dry-run
      cstp erase --examples
    """
    if [name is not None, subject is not None, examples].count(True) != 1:
        raise click.UsageError("Give one of AGENT, --subject USER and --examples.")
    if examples:
        erase_examples(client, out, ask=not yes, dry_run=dry_run)
    elif name is not None:
        erase_agent(client, out, name, ask=not yes, dry_run=dry_run)
    elif subject is not None:
        erase_subject(client, out, subject, ask=not yes, dry_run=dry_run)


def erase_agent(client: CstpClient, out: Output, name: str, *, ask: bool, dry_run: bool) -> None:
    """Print how much data an agent has, and erase it unless it is a dry run."""
    if dry_run:
        found = client.erase_agent(name, dry_run=True)
        out.answer(found, f"Kept: {describe_agent(found)}.")
        return
    if ask:
        kept = describe_agent(client.erase_agent(name, dry_run=True))
        click.confirm(f"Erase everything of {to_printable(name)} ({kept}) for good?", abort=True, err=True)
    answer = client.erase_agent(name)
    out.answer(answer, f"Erased: {describe_agent(answer)}.")


def erase_examples(client: CstpClient, out: Output, *, ask: bool, dry_run: bool) -> None:
    """Erase the data of the example agents, and delete the imported example decisions of the caller."""
    from cstp_grpc.cli import developer_setup

    own = client.list_decisions(filters={"agent": client.get_access().requesting_agent}, page_size=1000)
    imported = [found.id for found in own if found.source.startswith(developer_setup.EXAMPLE_SOURCE)]
    agents = developer_setup.example_agents()
    about = f"the data of {', '.join(agents)}, and {count_noun(len(imported), 'imported decision')}"
    if dry_run:
        out.answer(add_up([client.erase_agent(agent, dry_run=True) for agent in agents]), f"Kept: {about}.")
        return
    if ask:
        click.confirm(f"Erase {about} for good?", abort=True, err=True)
    erased = add_up([client.erase_agent(agent) for agent in agents])
    for decision_id in imported:
        client.delete_decision(decision_id)
    out.answer(erased, f"Erased: {describe_agent(erased)}; {count_noun(len(imported), 'imported decision')}.")


def add_up(answers: Sequence[erasure_pb2.EraseAgentResponse]) -> erasure_pb2.EraseAgentResponse:
    """Return the sums of the counts of several agents."""
    fields = erasure_pb2.EraseAgentResponse.DESCRIPTOR.fields
    return erasure_pb2.EraseAgentResponse(
        **{field.name: sum(getattr(answer, field.name) for answer in answers) for field in fields}
    )


def describe_agent(answer: erasure_pb2.EraseAgentResponse) -> str:
    """Return the numbers of an agent's records by kind, as text."""
    counted = count_nouns(
        (answer.decisions, "decision"),
        (answer.reviews, "review"),
        (answer.intents, "intent"),
        (answer.approvals, "approval request"),
        (answer.tasks, "task"),
        (answer.callbacks, "callback"),
        (answer.thoughts, "thought"),
    )
    return f"{counted}; {count_audit_contents(answer.audit_entries)}"


def erase_subject(client: CstpClient, out: Output, subject: str, *, ask: bool, dry_run: bool) -> None:
    """Print how much data a subject has, and erase it unless it is a dry run."""
    if dry_run:
        found = client.erase_subject(subject)
        out.answer(found, f"Kept: {describe_subject(found)}.")
        return
    if ask:
        kept = describe_subject(client.erase_subject(subject))
        click.confirm(f"Erase the data of {to_printable(subject)} ({kept}) for good?", abort=True, err=True)
    answer = client.erase_subject(subject, confirm=True)
    out.answer(answer, f"Erased: {describe_subject(answer)}.")


def describe_subject(answer: erasure_pb2.EraseSubjectResponse) -> str:
    """Return the numbers of a subject's records by kind, as text."""
    counted = count_nouns(
        (answer.sessions, "session"),
        (answer.messages, "message"),
        (answer.shared_contexts, "shared context"),
        (answer.routings, "routing"),
        (answer.events, "event"),
    )
    return f"{counted}; {count_audit_contents(answer.audit_entries)}"
