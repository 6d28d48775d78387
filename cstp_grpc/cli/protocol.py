"""The commands of the protocol (query, check, announce) and on announced intents, the generic `call`, and `version`."""

from __future__ import annotations

import sys
import time
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict, Unpack

import click

from cstp_grpc.cli.command_decorators import (
    CONFIDENCE,
    LIMIT,
    AnnouncementOptions,
    announcement_options,
    config_option,
    connected_client,
    current_state,
    enum_choice,
    federated_options,
    filter_options,
    inputs_options,
    json_option,
    judged_options,
    parse_json,
    server_options,
    with_client,
    with_output,
)
from cstp_grpc.cli.local_check import RulesChoice, judge_locally, rules_options
from cstp_grpc.cli.output import Output, ReconnectNotices
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.common.version import VERSION
from cstp_grpc.contract.enums import Outcome, Shell, Stakes, Visibility
from cstp_grpc.contract.errors import InvalidArgument

if TYPE_CHECKING:
    from cstp_grpc.cli import decision_output
    from cstp_grpc.cli.server_choice import ServerChoice
    from cstp_grpc.client import CstpClient
    from cstp_grpc.contract.calls import Json
    from cstp_grpc.contract.methods import RpcMethod
    from cstp_grpc.gen.cstp.v1 import cstp_pb2, types_pb2
else:
    decision_output = LazyModule("cstp_grpc.cli.decision_output")
    types_pb2 = LazyModule("cstp_grpc.gen.cstp.v1.types_pb2")

EXIT_BLOCKED = 3
"""The exit code where guardrails block."""
EXIT_APPROVAL_REQUIRED = 4
"""The exit code where nothing but the approval of a person is missing."""
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0
"""The longest pause between two looks at an approval, each 1.5 times as long as the one before."""


MIN_REVISION_OPTION = click.option(
    "--min-revision",
    metavar="REVISION",
    help="Find what the journal had at this revision, as `cstp record` prints it, whichever server wrote it.",
)
"""For servers of which several share a journal."""


@click.command()
@click.argument("text")
@filter_options
@click.option("--limit", type=click.IntRange(1, 50), help="Maximum number of results. [default: 10]")
@click.option("--min-score", type=CONFIDENCE, help="How alike at the least, 0 to 1.")
@click.option("--reasons", is_flag=True, help="Ask for the types of the decisions' reasons too.")
@MIN_REVISION_OPTION
@federated_options
@with_client
def query_command(
    client: CstpClient,
    out: Output,
    text: str,
    filters: types_pb2.DecisionFilters,
    limit: int | None,
    min_score: float | None,
    reasons: bool,
    min_revision: str | None,
    scope: str | None,
    asked: tuple[str, ...],
) -> None:
    """Search past decisions by meaning. Those that resemble TEXT most come first.

    \b
    Examples:
      cstp query "move sessions out of the database"
      cstp query "cache invalidation" --outcome failure --after 2025-01-01
      cstp query "deploy on friday" --agent security-policy --json
      cstp query "rotate keys" --scope federated
    """
    answer = client.query_decisions(
        text,
        filters=filters,
        limit=limit,
        min_score=min_score,
        include_reasons=reasons,
        min_journal_revision=min_revision,
        scope=scope,
        agents=asked,
    )
    out.answer(answer, lambda console: decision_output.print_query_answer(console, answer))


class JudgedOptions(TypedDict):
    """The options of `cstp check` that an action has under the same names."""

    category: str | None
    stakes: str | None
    confidence: float | None
    project: str | None


MAX_DESCRIPTION_CHARACTERS: Final = 8000
"""Maximum length of a description, as the contract has it."""


def describe_action(description: str | None, command: str | None, shell: str | None) -> tuple[str, dict[str, Any]]:
    """Return the description of an action, and the fields that state its command. Raises click.UsageError."""
    if not (description or command):
        reason = "Say what is about to be done: a DESCRIPTION, --command, or both."
        raise click.MissingParameter(reason, param_hint="'DESCRIPTION'", param_type="argument")
    if shell and not command:
        raise click.UsageError("--shell is the language of --command, which is missing.")
    if command is None:
        return description or "", {}
    # The folder of this process, in which the command would run.
    ran = {"command": command, "shell": shell, "directory": str(Path.cwd())}
    return description or command[:MAX_DESCRIPTION_CHARACTERS], ran


@click.command()
@click.argument("description", required=False)
@judged_options
@inputs_options("--context")
@click.option("--command", metavar="TEXT", help="The shell command that is about to run.")
@click.option(
    "--shell", type=click.Choice([word.value for word in Shell]), help="Language of the command. [default: bash]"
)
@click.option("--project", metavar="NAME", help="The project that it is about, for guardrails of some projects only.")
@click.option("--wait", is_flag=True, help="If an approval is missing, wait until people have decided on it.")
@federated_options
@rules_options
@server_options
@json_option
@config_option
def check_command(
    description: str | None,
    inputs: dict[str, Json],
    command: str | None,
    shell: str | None,
    wait: bool,
    scope: str | None,
    asked: tuple[str, ...],
    rules: RulesChoice | None,
    choice: ServerChoice,
    timeout: float | None,
    **judged: Unpack[JudgedOptions],
) -> None:
    """Check an action against the guardrails.

    Exit code 0 means allowed, 3 blocked, 4 that a person must approve it first (see `cstp approvals`), 1 an error.

    With --rules neither a server is asked nor a journal, and nothing is recorded. What only these know, such as the
    intents of other agents, counts against the action then.

    \b
    Examples:
      cstp check --command "rm -rf /"
      cstp check "deploy the auth service" --stakes high --confidence 0.9 \
          --context affectsProduction=true --context codeReviewCompleted=true
      cstp check "drop the old table" --context-json '{"affectsProduction": true}' && ./drop.sh
      cstp check "rotate the signing keys" --stakes critical --ask security
      cstp check "drop the old table" --context rows=5000 --wait && ./drop.sh
      cstp check "drop the old table" --local
      cstp check "drop the old table" --rules guardrails/
    """
    out = Output(json_wanted=current_state().json_wanted)
    described, ran = describe_action(description, command, shell)
    if rules is None:
        with connected_client(choice, timeout) as client:
            ask = partial(
                client.check_guardrails, described, context=inputs, scope=scope, agents=asked, **judged, **ran
            )
            answer = ask()
            if wait and answer.approval_required and answer.HasField("approval"):
                wait_for_decision(client, out, answer.approval.id)
                answer = ask()
    else:
        if timeout or scope or asked or wait or choice.is_made:
            raise click.UsageError("--rules asks no server; options that choose one have no meaning.")
        answer = judge_locally(rules, choice.identity or "", described, inputs, ran, **judged)
    out.answer(answer, lambda console: decision_output.print_check_answer(console, answer))
    exit_by_verdict(answer)


def wait_for_decision(client: CstpClient, out: Output, approval_id: str) -> None:
    """Return once an approval request is pending no more."""
    out.note(f"Waiting until the approval {approval_id} is decided on; Ctrl-C ends this.")
    pause = FIRST_PAUSE_SECONDS
    while client.get_approval(approval_id).status == types_pb2.APPROVAL_STATUS_PENDING:
        time.sleep(pause)
        pause = min(pause * 1.5, MAX_PAUSE_SECONDS)


def exit_by_verdict(verdict: cstp_pb2.CheckGuardrailsResponse | cstp_pb2.GuardrailStatus) -> None:
    """End the command with the exit code of a verdict, unless the action is allowed."""
    if not verdict.allowed:
        click.get_current_context().exit(EXIT_APPROVAL_REQUIRED if verdict.approval_required else EXIT_BLOCKED)


@click.command()
@announcement_options
@click.option("--agent-id", metavar="ID", help="Who you say you are; the token is what counts.")
@click.option("--agent-url", metavar="URL", help="The URL to notify of what happens after the answer.")
@click.option(
    "--correlation-id",
    help="Ties announcements together: repeating one with other content makes a revision. [default: random]",
)
@click.option(
    "--share/--private",
    default=None,
    help="Whether other agents see it. [default: as the server is configured]",
)
@MIN_REVISION_OPTION
@federated_options
@with_client
def announce_command(
    client: CstpClient,
    out: Output,
    intent: str,
    inputs: dict[str, Json],
    agent_id: str | None,
    agent_url: str | None,
    share: bool | None,
    min_revision: str | None,
    asked: tuple[str, ...],
    **options: Unpack[AnnouncementOptions],
) -> None:
    """Announce an intent and get advice. The answer has similar past decisions, the verdict of the guardrails, and
    suggestions.

    With --path, also get what governs these files and folders; with --share, others who are about to do the same are
    told of it. Exit code 0 means that nothing blocks, 3 that a guardrail does, 4 that a person must approve it first
    (see `cstp approvals`), 1 an error.

    \b
    Examples:
      cstp announce "Deploy the auth service to production" --stakes high --confidence 0.85
      cstp announce "Migrate orders to the new schema" --category database \
          --context "tested on a copy" --metadata affectsProduction=true
      cstp announce "Rebuild the orders search index tonight" --share --correlation-id rebuild-orders-index
      cstp announce "Add a handler" --project shop --path src/api/handlers.ts \
          --metadata confirmedChecks='["Run the contract tests"]'
      cstp announce "Deploy the auth service" --agent-id emerson \
          --agent-url https://agents.example.com/cstp/emerson
    """
    visibility = None if share is None else Visibility.SHARED if share else Visibility.PRIVATE
    claimed = types_pb2.AgentInfo(id=agent_id, url=agent_url) if agent_id or agent_url else None
    answer = client.announce_intent(
        intent,
        agent=claimed,
        metadata=inputs,
        visibility=visibility,
        min_journal_revision=min_revision,
        agents=asked,
        **options,
    )
    out.answer(answer, lambda console: decision_output.print_announce_answer(console, answer))
    if answer.HasField("guardrail_status"):
        exit_by_verdict(answer.guardrail_status)


@click.command()
@click.argument("method")
@click.argument("params", default="{}")
@with_client
def call_command(client: CstpClient, out: Output, method: str, params: str) -> None:
    """Call any method by its JSON-RPC name. METHOD is unary; PARAMS is a JSON object, and `-` reads it from
    standard input.

    \b
    Examples:
      cstp call cstp.checkGuardrails '{"action": {"description": "deploy"}}'
      cstp call cstp.listDecisions < params.json -
    """
    from cstp_grpc.contract import json_codec

    described = find_method(method)
    text = sys.stdin.read() if params == "-" else params
    try:
        request = json_codec.from_json(parse_json(text), described.request)
    except json_codec.CodecError as error:
        raise InvalidArgument(f"{method}: {error}", violations=error.violations) from error
    except ValueError as error:
        raise click.UsageError(f"PARAMS is not JSON: {error}") from error
    answer = client.call(described, request)
    out.document(json_codec.to_json(answer))


def find_method(name: str) -> RpcMethod:
    """Return a method by its JSON-RPC name. Raises click.UsageError, which lists the methods."""
    from cstp_grpc.contract.methods import contract_methods, method_by_name

    with suppress(KeyError):
        if not (method := method_by_name(name)).streaming:
            return method
    import difflib

    unary = [key for key, method in contract_methods().items() if not method.streaming]
    close = difflib.get_close_matches(name, unary, n=1)
    meant = f" Did you mean '{close[0]}'?" if close else ""
    raise click.UsageError(f"There is no unary method {name!r}.{meant} There are: {', '.join(unary)}.")


@click.command()
@with_output
def version_command(out: Output) -> None:
    """Show the version.

    \b
    Example:
      cstp version --json
    """
    if out.json_wanted:
        out.document({"version": VERSION})
    else:
        out.write_verbatim(f"{VERSION}\n")


@click.group()
def intent_group() -> None:
    """Close and watch announced intents."""


@intent_group.command(name="close")
@click.argument("correlation_id", metavar="ID")
@click.option("--outcome", type=enum_choice(Outcome), required=True, help="How it turned out.")
@click.option("--notes", metavar="TEXT", help="What is to be known about it; read by whoever may read the intent.")
@click.option("--decision", metavar="ID", help="The decision that came of it.")
@click.option("--revision", type=click.IntRange(min=1), help="Which revision. [default: the latest]")
@with_client
def close_command(
    client: CstpClient,
    out: Output,
    correlation_id: str,
    outcome: str,
    notes: str | None,
    decision: str | None,
    revision: int | None,
) -> None:
    """Close an intent of yours. ID is its correlation id.

    \b
    Examples:
      cstp intent close rebuild-orders-index --outcome success
      cstp intent close rebuild-orders-index --outcome failure --notes "The disk was full" \
          --decision dec-0f3a9b2c4d5e6f708192
    """
    answer = client.close_intent(correlation_id, outcome, notes=notes, decision_id=decision, revision=revision)
    out.answer(answer, lambda console: decision_output.print_closed_intent(console, answer))


@intent_group.command(name="watch")
@click.option("--by", "announced_by", metavar="AGENT", help="Announced by exactly this agent.")
@click.option("--category", help="Exactly this category.")
@click.option("--stakes", type=enum_choice(Stakes), multiple=True, help="Any of these stakes.")
@click.option("--project", help="Exactly this project.")
@click.option("--after", metavar="TOKEN", help="Continue after this resume token. [default: now]")
@click.option("--limit", type=LIMIT, metavar="N", help="End after so many intents.")
@with_client
def watch_command(
    client: CstpClient,
    out: Output,
    announced_by: str | None,
    category: str | None,
    stakes: tuple[str, ...],
    project: str | None,
    after: str | None,
    limit: int | None,
) -> None:
    """Watch intents as they are announced. Prints yours and those that others share, until Ctrl-C.

    Where the server goes away, it waits for it and goes on. With --json, each is an object on a line, with the token
    from which another watch goes on; what was announced while another announcement was being stored may be
    printed again.

    \b
    Examples:
      cstp intent watch --stakes high --stakes critical
      cstp intent watch --project shop --json
    """
    # One call first: a wrong address or token must fail at once, while the watch below retries until it is stopped.
    client.get_access()
    interruptions = ReconnectNotices(out)
    answers = client.watch_intents(
        agent=announced_by,
        category=category,
        stakes=stakes,
        project=project,
        after=after,
        on_failure=interruptions.report,
    )
    # Ctrl-C is the regular end of a watch.
    with suppress(KeyboardInterrupt), closing(answers):
        for answer in islice((each for each in answers if each.HasField("intent")), limit):
            interruptions.reset()
            if out.json_wanted:
                out.json_line(answer)
            else:
                out.line(decision_output.intent_line(answer.intent))
