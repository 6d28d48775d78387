"""The group of the commands about guardrails, and those that show rules, of a server or in files."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cstp_grpc.cli import command_decorators as shared
from cstp_grpc.cli import rulebook_authoring as authoring
from cstp_grpc.cli.local_check import RULES_PATH, open_rules, read_action
from cstp_grpc.cli.output import Output
from cstp_grpc.cli.rulebook_trials import replay_command, try_command
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.contract.enums import Permission

if TYPE_CHECKING:
    from cstp_grpc.cli import rule_output
    from cstp_grpc.cli.command_decorators import Command
    from cstp_grpc.cli.server_choice import ServerChoice
    from cstp_grpc.client import CstpClient
    from cstp_grpc.contract.calls import Json
    from cstp_grpc.core.guardrails.model import Action
    from cstp_grpc.gen.cstp.v1 import guardrails_pb2
else:
    rule_output = LazyModule("cstp_grpc.cli.rule_output")
    guardrails_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.guardrails_pb2")

EXIT_UNUSABLE = 3
"""The exit code where the rulebooks of a server cannot be loaded."""
PAGE_SIZE = 1000
"""Items in a page: the most that the contract gives."""


@click.group()
def guardrails_group() -> None:
    """Write, test and inspect rulebooks."""


for command in (
    *(authoring.new_command, authoring.validate_command, authoring.test_command, authoring.diff_command),
    *(authoring.convert_command, authoring.schema_command, try_command, replay_command),
):
    guardrails_group.add_command(command)


def files_or_server_options(command: Command) -> Command:
    return shared.stack_options(
        click.argument("path", type=RULES_PATH, required=False),
        shared.server_options,
        shared.json_option,
        shared.config_option,
    )(command)


def refuse_server_options(choice: ServerChoice, timeout: float | None) -> None:
    """Raise click.UsageError if a server is chosen for a command that asks none."""
    if timeout or choice.is_made or choice.identity:
        raise click.UsageError("Rules in files need no server; options that choose one have no meaning.")


@guardrails_group.command(name="list")
@files_or_server_options
def list_command(path: Path | None, choice: ServerChoice, timeout: float | None) -> None:
    """List guardrails. Asks a server; with PATH, it reads a rulebook or folder.

    With the permission admin, the server shows their conditions.

    \b
    Examples:
      cstp guardrails list
      cstp guardrails list --agent https://cstp.example.com
      cstp guardrails list guardrails/ --json
    """
    out = Output(json_wanted=shared.current_state().json_wanted)
    if path is not None:
        refuse_server_options(choice, timeout)
        rules = open_rules(path)
        if out.json_wanted:
            out.document({"version": rules.version, "guardrails": rule_output.guardrails_to_json(rules)})
        else:
            out.show(lambda console: rule_output.print_rule_set(console, rules))
        return
    with shared.endpoint_of_choice(choice).connect(timeout) as client:
        answer = list_all(client, "cstp.listGuardrails", guardrails_pb2.ListGuardrailsRequest(page_size=PAGE_SIZE))
    out.answer(answer, lambda console, found: rule_output.print_guardrails(console, found))


@guardrails_group.command(name="inputs")
@files_or_server_options
def inputs_command(path: Path | None, choice: ServerChoice, timeout: float | None) -> None:
    """List the inputs that guardrails read. Asks a server; with PATH, it reads a rulebook or folder.

    \b
    Examples:
      cstp guardrails inputs
      cstp guardrails inputs --agent https://cstp.example.com --json
      cstp guardrails inputs guardrails/
    """
    out = Output(json_wanted=shared.current_state().json_wanted)
    if path is not None:
        refuse_server_options(choice, timeout)
        answer = list_inputs_of_files(path)
    else:
        with shared.endpoint_of_choice(choice).connect(timeout) as client:
            answer = list_all(client, "cstp.listInputs", guardrails_pb2.ListInputsRequest(page_size=PAGE_SIZE))
    out.answer(answer, lambda console, found: rule_output.print_inputs(console, found))


def list_inputs_of_files(path: Path) -> guardrails_pb2.ListInputsResponse:
    """Return the inputs of the rules at a path, as a server would answer them. Raises click.ClickException."""
    from cstp_grpc.core.guardrails.messages import input_message
    from cstp_grpc.core.guardrails.rules_in_force import RuleListing

    rules = open_rules(path)
    listing = RuleListing(rules, datetime.now(UTC))
    return guardrails_pb2.ListInputsResponse(
        inputs=[input_message(listed) for listed in listing.inputs], rule_set_version=rules.version
    )


@guardrails_group.command(name="rulebook")
@shared.with_client
def rulebook_command(client: CstpClient, out: Output) -> None:
    """Show the rulebooks in force on a server. Also shows why others cannot be loaded.

    Exit code 0 means that the rulebooks in the files are in force, 3 that they cannot be loaded, 1 an error.

    \b
    Examples:
      cstp guardrails rulebook
      cstp guardrails rulebook --agent https://cstp.example.com --json
    """
    answer = client.get_rulebook()
    out.answer(answer, lambda console, found: rule_output.print_rulebooks(console, found))
    if answer.HasField("last_failed_load"):
        click.get_current_context().exit(EXIT_UNUSABLE)


@guardrails_group.command(name="explain")
@click.argument("action", type=click.Path(path_type=Path, dir_okay=False, allow_dash=True))
@click.option("--guardrail", "guardrail_ids", metavar="ID", multiple=True, help="Only this guardrail; repeatable.")
@click.option("--acting-agent", metavar="AGENT", help="Agent that acts. [default: you]")
@click.option(
    "--permission",
    "permissions",
    type=click.Choice([word.value for word in Permission]),
    multiple=True,
    help="Permission of this agent; repeatable.",
)
@shared.instant_option("--at", "Time of the action. [default: now]", is_future=True)
@click.option("--rules", type=RULES_PATH, help="Explain by this rulebook or folder alone, without a server.")
@shared.server_options
@shared.json_option
@shared.config_option
def explain_command(
    action: Path,
    guardrail_ids: tuple[str, ...],
    acting_agent: str | None,
    permissions: tuple[str, ...],
    at: datetime | None,
    rules: Path | None,
    choice: ServerChoice,
    timeout: float | None,
) -> None:
    """Explain the verdict on an action. ACTION is a JSON file; `-` reads standard input.

    The file contains a JSON object as `cstp.checkGuardrails` accepts it: a description and optionally category, stakes,
    confidence, context and project. It is not a check, and nothing is recorded. A server requires the permission admin.
    With --rules, facts that only a server has, such as the intents of other agents, cannot be evaluated.

    \b
    Examples:
      cstp guardrails explain action.json
      cstp guardrails explain action.json --guardrail no-bulk-change --acting-agent emerson
      cstp guardrails explain action.json --rules guardrails/ --json
      echo '{"description": "Drop the table"}' | cstp guardrails explain - --rules rules.yaml
    """
    request = read_request(action, guardrail_ids, acting_agent, permissions, at)
    if rules is not None:
        refuse_server_options(choice, timeout)
        answer = explain_by_files(rules, request)
    else:
        with shared.endpoint_of_choice(choice).connect(timeout) as client:
            answer = list_all(client, "cstp.explainGuardrails", request)
    out = Output(json_wanted=shared.current_state().json_wanted)
    out.answer(answer, lambda console, found: rule_output.print_explanations(console, found))


def read_request(
    path: Path,
    guardrail_ids: tuple[str, ...],
    acting_agent: str | None,
    permissions: tuple[str, ...],
    at: datetime | None,
) -> guardrails_pb2.ExplainGuardrailsRequest:
    """Read the action in a file. Raises click.ClickException."""
    from cstp_grpc.contract.json_codec import CodecError, from_json

    params: dict[str, Json] = {"action": read_action(path), "guardrailIds": list(guardrail_ids)}
    params |= {"permissions": list(permissions), "pageSize": PAGE_SIZE}
    if acting_agent is not None:
        params["actingAgent"] = acting_agent
    if at is not None:
        params["at"] = at.isoformat()
    try:
        return from_json(params, guardrails_pb2.ExplainGuardrailsRequest)
    except CodecError as error:
        raise click.ClickException(f"{path}: {error}") from error


def explain_by_files(
    path: Path, request: guardrails_pb2.ExplainGuardrailsRequest
) -> guardrails_pb2.ExplainGuardrailsResponse:
    """Explain an action by the rules at a path, as a server would answer it.

    Raises InvalidArgument and click.ClickException.
    """
    from cstp_grpc.core.guardrails.local_rulebook import WARN_OF_UNKNOWN, Rulebook
    from cstp_grpc.core.guardrails.messages import CHECK, EXPLANATION
    from cstp_grpc.core.guardrails.model import CheckResult

    rules = open_rules(path)
    names = {rule.id: book.name for book in rules.rulebooks for rule in book.guardrails}
    if unknown := sorted(set(request.guardrail_ids) - names.keys()):
        raise click.ClickException(f"no guardrail is called {', '.join(unknown)}")
    explained = Rulebook(rules, WARN_OF_UNKNOWN).explain(local_action(request))
    wanted = request.guardrail_ids or names.keys()
    return guardrails_pb2.ExplainGuardrailsResponse(
        verdict=CHECK.encode(CheckResult(explained.verdict, datetime.now(UTC))),
        guardrails=[
            EXPLANATION.encode(each, rulebook=names[each.guardrail.id])
            for each in explained.guardrails
            if each.guardrail.id in wanted
        ],
        rule_set_version=rules.version,
    )


def local_action(request: guardrails_pb2.ExplainGuardrailsRequest) -> Action:
    from cstp_grpc.contract.caller import Caller
    from cstp_grpc.core.guardrails.messages import parse_explained_action

    return parse_explained_action(request, Caller("", "", frozenset()), request.action)


def list_all(client: CstpClient, method: str, request: Any) -> Any:
    """Return the answer of a listing with the items of all pages, and everything else from the first one."""
    from cstp_grpc.contract.methods import contract_methods

    rpc = contract_methods()[method]
    answer: Any = client.call(rpc, request)
    page = answer
    while page.next_page_token:
        request.page_token = page.next_page_token
        page = client.call(rpc, request)
        for field, value in page.ListFields():
            if field.is_repeated:
                getattr(answer, field.name).extend(value)
    answer.next_page_token = ""
    return answer
