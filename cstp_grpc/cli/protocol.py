"""The commands of the protocol (query, check, announce) and on announced intents, the generic `call`, and `version`."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cstp_grpc.cli import command_decorators as shared
from cstp_grpc.cli.local_check import RulesChoice, judge_locally, rules_options
from cstp_grpc.cli.output import Output, report_unfit_answers
from cstp_grpc.cli.rpc_commands import calls_rpc, watches_changes
from cstp_grpc.cli.short_ids import DECISION_ID
from cstp_grpc.common.lazy_imports import LazyModule
from cstp_grpc.common.version import VERSION
from cstp_grpc.contract.enums import Outcome, Shell, Stakes, Visibility
from cstp_grpc.contract.errors import InvalidArgument

if TYPE_CHECKING:
    from datetime import datetime

    from cstp_grpc.cli import advice_output, decision_output
    from cstp_grpc.cli.console import Console
    from cstp_grpc.cli.server_choice import ServerChoice
    from cstp_grpc.client import CstpClient
    from cstp_grpc.client.json_client import JsonClient
    from cstp_grpc.contract.calls import Json
    from cstp_grpc.contract.methods import RpcMethod
    from cstp_grpc.gen.cstp.v1 import intents_pb2
else:
    advice_output = LazyModule("cstp_grpc.cli.advice_output")
    decision_output = LazyModule("cstp_grpc.cli.decision_output")

EXIT_BLOCKED = 3
"""The exit code where guardrails block."""
EXIT_APPROVAL_REQUIRED = 4
"""The exit code where nothing but the approval of a person is missing."""
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 5.0
"""The longest pause between two looks at an approval, each 1.5 times as long as the one before."""


min_revision_option = click.option(
    "--min-revision",
    "min_journal_revision",
    metavar="REVISION",
    help="Search the journal at this revision or later, as `cstp record` prints it, on any server.",
)
"""For servers that share a journal."""


@click.command()
@click.argument("query", metavar="TEXT")
@shared.filter_options
@click.option("--limit", type=click.IntRange(1, 50), help="Maximum number of results. [default: 10]")
@click.option("--min-score", type=shared.CONFIDENCE, help="Minimum similarity, 0 to 1.")
@click.option("--reasons", "include_reasons", is_flag=True, help="Ask for the types of the decisions' reasons too.")
@min_revision_option
@shared.federated_options
@shared.with_json_client
def query_command(client: JsonClient, out: Output, **fields: Any) -> None:
    """Search past decisions by meaning. Those that resemble TEXT most come first.

    \b
    Examples:
      cstp query "move sessions out of the database"
      cstp query "cache invalidation" --outcome failure --after 2025-01-01
      cstp query "deploy on friday" --agent security-policy --json
      cstp query "rotate keys" --scope federated
    """
    out.answer(client.call("cstp.queryDecisions", fields), advice_output.print_query_answer)


MAX_DESCRIPTION_CHARACTERS: Final = 8000
"""Maximum length of a description, as the contract has it."""


def describe_action(description: str | None, command: str | None, shell: str | None) -> tuple[str, dict[str, Any]]:
    """Return the description of an action, and the fields that state its command. Raises click.UsageError."""
    if not (description or command):
        reason = "Describe the action: with a DESCRIPTION, --command, or both."
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
@shared.judged_options
@shared.inputs_options("--context")
@click.option("--command", metavar="TEXT", help="The shell command that is about to run.")
@click.option(
    "--shell", type=click.Choice([word.value for word in Shell]), help="Language of the command. [default: bash]"
)
@click.option("--project", metavar="NAME", help="The project that it is about, for guardrails of some projects only.")
@click.option("--wait", is_flag=True, help="If an approval is missing, wait for the decision.")
@shared.federated_options
@rules_options
@shared.server_options
@shared.json_option
@shared.config_option
def check_command(
    description: str | None,
    context: dict[str, Json],
    command: str | None,
    shell: str | None,
    wait: bool,
    rules: RulesChoice | None,
    choice: ServerChoice,
    timeout: float | None,
    scope: str | None,
    agents: tuple[str, ...],
    **judged: Any,
) -> None:
    """Check an action against the guardrails.

    Exit code 0 means allowed, 3 blocked, 4 that a person must approve it first (see `cstp approvals`), 1 an error.

    With --rules no server and no journal is used, and nothing is recorded. Facts that only these have, such as the
    intents of other agents, then count against the action.

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
    out = Output(json_wanted=shared.current_state().json_wanted)
    described, ran = describe_action(description, command, shell)
    if rules is None:
        action = {"description": described, "context": context, **judged, **ran}
        request = {"action": action, "scope": scope, "agents": agents}
        with shared.endpoint_of_choice(choice).connect_json(timeout) as client:
            answer = client.call("cstp.checkGuardrails", request)
            if wait and answer.get("approvalRequired") and "approval" in answer:
                wait_for_decision(client, out, answer)
                answer = client.call("cstp.checkGuardrails", request)
    else:
        if timeout or scope or agents or wait or choice.is_made:
            raise click.UsageError("--rules asks no server; options that choose one have no meaning.")
        answer = judge_locally(rules, choice.identity or "", described, context, ran, **judged)
    out.answer(answer, advice_output.print_check_answer)
    exit_by_verdict(answer)


@report_unfit_answers()
def wait_for_decision(client: JsonClient, out: Output, verdict: Mapping[str, Any]) -> None:
    approval_id = verdict["approval"]["id"]
    out.note(f"Waiting for the decision on approval {approval_id}; Ctrl-C stops.")
    pause = FIRST_PAUSE_SECONDS
    while client.call("cstp.getApproval", {"id": approval_id})["approval"]["status"] == "pending":
        time.sleep(pause)
        pause = min(pause * 1.5, MAX_PAUSE_SECONDS)


@report_unfit_answers()
def exit_by_verdict(verdict: Mapping[str, Any]) -> None:
    """End the command with the exit code of a verdict, unless the action is allowed. Raises InternalError."""
    # Anything but true, and violations all the same: another answer must not let the action through.
    allowed = verdict.get("allowed") is True
    if allowed and not isinstance(verdict["violations"], list):
        raise TypeError("violations is not a list")
    if not allowed or verdict["violations"]:
        click.get_current_context().exit(EXIT_APPROVAL_REQUIRED if verdict.get("approvalRequired") else EXIT_BLOCKED)


@click.command()
@shared.announcement_options
@click.option("--agent-id", metavar="ID", help="Name that you claim; the token decides.")
@click.option("--agent-url", metavar="URL", help="The URL to notify of events after the answer.")
@click.option(
    "--correlation-id",
    help="Ties announcements together: repeating one with other content makes a revision. [default: random]",
)
@click.option(
    "--share/--private", default=None, help="Whether other agents see it. [default: as the server is configured]"
)
@min_revision_option
@shared.federated_options
@shared.with_json_client
def announce_command(
    client: JsonClient, out: Output, agent_id: str | None, agent_url: str | None, share: bool | None, **fields: Any
) -> None:
    """Announce an intent and get advice. The answer has similar past decisions, the verdict of the guardrails, and
    suggestions.

    With --path, also get the rules for these files and folders; with --share, notify agents that announce a similar
    intent. Exit code 0 means that nothing blocks, 3 that a guardrail does, 4 that a person must approve it first (see
    `cstp approvals`), 1 an error.

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
    claimed = {"id": agent_id, "url": agent_url} if agent_id or agent_url else None
    announcement = {**with_correlation_id(fields), "agent": claimed, "visibility": visibility}
    answer = client.call("cstp.announceIntent", announcement)
    out.answer(answer, advice_output.print_announce_answer)
    if "guardrailStatus" in answer:
        exit_by_verdict(answer["guardrailStatus"])


def with_correlation_id(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return an announcement with an id, so that it can be repeated."""
    return {**fields, "correlation_id": fields["correlation_id"] or str(uuid.uuid4())}


@click.command()
@shared.announcement_options
@click.option("--correlation-id", help="Idempotency key. [default: random]")
@click.option("--title", metavar="TEXT", help="Title of the decision. [default: the intent]")
@click.option("--reason", "reasons", type=shared.parse_key_value, multiple=True, metavar="TYPE=TEXT", help="Why.")
@click.option("--tag", "tags", multiple=True, help="A tag; repeatable.")
@shared.instant_option("--review-by", "When to review it; `cstp review --due` lists it.", is_future=True)
@shared.federated_options
@shared.with_json_client
def pre_action_command(
    client: JsonClient,
    out: Output,
    intent: str,
    title: str | None,
    reasons: tuple[tuple[str, str], ...],
    tags: tuple[str, ...],
    review_by: datetime | None,
    **fields: Any,
) -> None:
    """Announce an intent; record it if allowed.

    Both are recorded, or neither. Exit code 0 means that it is allowed, 3 that a guardrail blocks it, 4 that a
    person must approve it first (see `cstp approvals`), 1 an error.

    \b
    Examples:
      cstp pre-action "Rebuild the orders index tonight" --confidence 0.8 --review-by 2027-01-31
      cstp pre-action "Deploy the auth service" --stakes high --title "Deploy auth 3.4 before the fix of the cache" \
          --metadata affectsProduction=true --metadata codeReviewCompleted=true --metadata ciPassing=true
    """
    decision: dict[str, Any] | None = None
    if title is not None or reasons or tags or review_by is not None:
        described = [{"type": kind, "text": text} for kind, text in reasons]
        title = intent if title is None else title
        decision = {"title": title, "reasons": described, "tags": tags, "review_by": review_by}
    announcement = with_correlation_id({"intent": intent, **fields})
    answer = client.call("cstp.preAction", {"announcement": announcement, "decision": decision})
    out.answer(answer, advice_output.print_pre_action)
    with report_unfit_answers():
        exit_by_verdict(answer["feedback"].get("guardrailStatus", {}))


@click.command()
@click.option("--task", metavar="TEXT", help="Your task; intents of others that resemble it come first.")
@click.option("--project", metavar="NAME", help="Project of the paths. [default: the server's only one]")
@click.option("--path", "paths", metavar="P", multiple=True, help="A file or folder that you are going to work on.")
@click.option(
    "--budget",
    "max_tokens",
    type=click.IntRange(200, 100_000),
    metavar="N",
    help="Maximum size in tokens. [default: 2000]",
)
@shared.with_json_client
def session_context_command(client: JsonClient, out: Output, **fields: Any) -> None:
    """Print the context of a new session. As Markdown: your past decisions, the rules, and the intents of others.

    It contains your decisions that are due for review, failed or recent, lessons by category, rules and the facts that
    they read, your calibration, intents of others, and the rules for the paths: the most useful first, up to the
    budget. A token counts as four characters.

    \b
    Examples:
      cstp session-context
      cstp session-context --project shop --path src/api --budget 1000
      cstp session-context --task "Move the sessions to Redis" --json
    """
    answer = client.call("cstp.getSessionContext", fields)
    if out.json_wanted:
        out.document(answer)
    else:
        # Unchanged for the agents that read it: no wrapping, and no replaced characters but on a terminal.
        with report_unfit_answers():
            out.write_verbatim(answer["markdown"])


@click.command()
@click.argument("method")
@click.argument("params", default="{}")
@shared.with_client
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
        request = json_codec.from_json(shared.parse_json(text), described.request)
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
@shared.with_output
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


@intent_group.command()
@click.argument("correlation_id", metavar="ID")
@click.option("--outcome", type=shared.enum_choice(Outcome), required=True, help="How it turned out.")
@click.option("--notes", metavar="TEXT", help="Notes on it, for everyone who may read the intent.")
@click.option("--decision", "decision_id", type=DECISION_ID, metavar="ID", help="The decision that resulted from it.")
@click.option("--revision", type=click.IntRange(min=1), help="Which revision. [default: the latest]")
@calls_rpc("close_intent")
def close_command(console: Console, answer: intents_pb2.CloseIntentResponse) -> None:
    """Close an intent of yours. ID is its correlation id.

    \b
    Examples:
      cstp intent close rebuild-orders-index --outcome success
      cstp intent close rebuild-orders-index --outcome failure --notes "The disk was full" \
          --decision dec-0f3a9b2c4d5e6f708192
    """
    decision_output.print_closed_intent(console, answer)


@intent_group.command()
@click.option("--by", "agent", metavar="AGENT", help="Announced by exactly this agent.")
@click.option("--category", help="Exactly this category.")
@click.option("--stakes", type=shared.enum_choice(Stakes), multiple=True, help="Any of these stakes.")
@click.option("--project", help="Exactly this project.")
@click.option("--after", metavar="TOKEN", help="Continue after this resume token. [default: now]")
@click.option("--limit", type=shared.LIMIT, metavar="N", help="Stop after this number of intents.")
@watches_changes("watch_intents", "intent")
def watch_command(change: intents_pb2.WatchIntentsResponse) -> str:
    """Watch intents as they are announced. Prints yours and those that others share, until Ctrl-C.

    If the server goes away, the watch waits and continues. With --json, each is an object on a line, with a token to
    resume the watch; intents announced at the same time may then be printed again.

    \b
    Examples:
      cstp intent watch --stakes high --stakes critical
      cstp intent watch --project shop --json
    """
    return decision_output.intent_line(change.intent)
