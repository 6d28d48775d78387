"""Output of rules, their inputs and explanations for people."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime

from cstp_grpc.cli.advice_output import print_check_answer
from cstp_grpc.cli.answer_fields import entry_text, enum_word, format_instant
from cstp_grpc.cli.console import Console, Text, TextTable
from cstp_grpc.cli.output import json_members, to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.contract.enums import Enforcement
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.core.guardrails.model import Guardrail, RuleSet
from cstp_grpc.gen.cstp.v1 import guardrails_pb2, types_pb2

SEVERITY_STYLES = {"block": "red", "approve": "magenta", "warn": "yellow"}
MAX_EXPRESSION = 120
"""Characters of a part of a condition that are shown; lists of phrases are longer, and `--json` has all."""
OUTCOME_STYLES = {"matched": "red", "unevaluable": "yellow", "not_matched": "green", "skipped": "dim"}


def severity_text(severity: types_pb2.Severity.ValueType) -> Text:
    word = enum_word(types_pb2.Severity, severity)
    return Text(word, style=SEVERITY_STYLES.get(word, ""))


def print_rule_set(console: Console, rules: RuleSet) -> None:
    table = TextTable()
    for rulebook in rules.rulebooks:
        for rule in rulebook.guardrails:
            details = [f"{rulebook.file}:{rule.line}", *rule_notes(rule)]
            severity = Text(rule.severity, style=SEVERITY_STYLES[rule.severity])
            table.add_row(severity, entry_text(f"{rule.id}: {rule.name}", details))
    console.print(table)
    console.print(f"{count_noun(len(rules.guardrails), 'guardrail')}, version {rules.version}", soft_wrap=True)


def rule_notes(rule: Guardrail) -> Iterator[str]:
    """Yield the reasons why a guardrail is not enforced now or later."""
    if rule.enforcement is not Enforcement.ENFORCE:
        yield rule.enforcement.value
    if rule.expires is not None:
        yield expiry_note(rule.expires)


def expiry_note(expires: datetime) -> str:
    return f"{'expired' if expires <= datetime.now(UTC) else 'expires'} {expires:%Y-%m-%d %H:%M} UTC"


def guardrails_to_json(rules: RuleSet) -> list[dict[str, object]]:
    return [
        {
            **json_members(rule, "id", "name", "severity", "enforcement"),
            "expires": rule.expires and rule.expires.isoformat().replace("+00:00", "Z"),
            "owner": rule.owner or rulebook.owner,
            **json_members(rule, "tags", "approvers", "message", "suggestion", "description"),
            "rulebook": rulebook.name,
            "file": rulebook.file,
            "line": rule.line,
        }
        for rulebook in rules.rulebooks
        for rule in rulebook.guardrails
    ]


def print_guardrails(console: Console, answer: guardrails_pb2.ListGuardrailsResponse) -> None:
    table = TextTable()
    for rule in answer.guardrails:
        details = [
            rule.rulebook,
            *match_notes(rule),
            *server_rule_notes(rule),
            *([f"approved by {' or '.join(rule.approvers)}"] if rule.approvers else []),
            *([f"reads {', '.join(rule.inputs)}"] if rule.inputs else []),
        ]
        entry = entry_text(f"{rule.id}: {rule.name}", details)
        if rule.HasField("expression"):
            entry.append(f"\n{rule.expression.strip()}")
        table.add_row(severity_text(rule.severity), entry)
    console.print(table)
    version = to_printable(answer.rule_set_version)
    console.print(f"{count_noun(len(answer.guardrails), 'guardrail')}, version {version}", soft_wrap=True)


def match_notes(rule: guardrails_pb2.Guardrail) -> Iterator[str]:
    """Yield for which actions a guardrail is; a rule may have no other condition."""
    if rule.categories:
        yield f"category {' or '.join(rule.categories)}"
    if rule.stakes:
        yield f"stakes {' or '.join(enum_word(types_pb2.Stakes, stakes) for stakes in rule.stakes)}"


def server_rule_notes(rule: guardrails_pb2.Guardrail) -> Iterator[str]:
    """Yield the reasons why a guardrail of a server is not enforced now or later."""
    if rule.enforcement != guardrails_pb2.ENFORCEMENT_ENFORCE:
        yield enum_word(guardrails_pb2.Enforcement, rule.enforcement)
    if rule.HasField("expires"):
        yield expiry_note(rule.expires.ToDatetime(UTC))


def print_inputs(console: Console, answer: guardrails_pb2.ListInputsResponse) -> None:
    if not answer.inputs:
        console.print("The guardrails read no inputs.")
        return
    table = TextTable()
    for item in answer.inputs:
        details = [", ".join(input_notes(item)), f"read by {', '.join(item.guardrail_ids) or 'none'}"]
        table.add_row(to_printable(item.name), item.type, entry_text(item.description or item.name, details))
    console.print(table)
    version = to_printable(answer.rule_set_version)
    console.print(f"{count_noun(len(answer.inputs), 'input')}, version {version}", soft_wrap=True)


def input_notes(item: guardrails_pb2.GuardrailInput) -> Iterator[str]:
    """Yield the valid values of an input, and its default."""
    if item.values:
        yield f"one of {' | '.join(item.values)}"
    if item.required:
        yield "required"
    if item.HasField("default_value"):
        yield f"default: {json.dumps(to_json(item)['defaultValue'], ensure_ascii=False)}"


def print_rulebooks(console: Console, answer: guardrails_pb2.GetRulebookResponse) -> None:
    """Print the rulebooks in force, and why others are not."""
    since = f"{answer.rule_set_version}, in force since {format_instant(answer.loaded_at)}"
    console.print(to_printable(since), soft_wrap=True)
    table = TextTable()
    for item in answer.rulebooks:
        details = [count_noun(item.guardrails, "guardrail"), item.owner, f"sha256 {item.digest[:12]}"]
        table.add_row(f"  {to_printable(item.file)}", entry_text(f"{item.name} {item.version}", details))
    console.print(table)
    if not answer.HasField("last_failed_load"):
        return
    failed = answer.last_failed_load
    console.print(Text(f"The files could not be loaded at {format_instant(failed.failed_at)}:", style="red"))
    for problem in failed.problems:
        place = f"  {problem.file}:{problem.line}: {problem.where}: {problem.reason}"
        console.print(Text(to_printable(place)), soft_wrap=True)
    if failed.problem_count > len(failed.problems):
        console.print(f"  and {failed.problem_count - len(failed.problems)} more, which the server's log has")


def print_explanations(console: Console, answer: guardrails_pb2.ExplainGuardrailsResponse) -> None:
    """Print the verdict on an action, and the outcome of each guardrail.

    Of several, those that do not match show only the deciding condition.
    """
    print_check_answer(console, to_json(answer.verdict))
    for item in answer.guardrails:
        in_brief = item.outcome == guardrails_pb2.RULE_OUTCOME_NOT_MATCHED and len(answer.guardrails) > 1
        console.print(explanation_headline(item), soft_wrap=True)
        if item.outcome == guardrails_pb2.RULE_OUTCOME_SKIPPED:
            # What it would have read does not matter then.
            continue
        for part in item.parts:
            if part.decisive or not in_brief:
                style = "bold" if part.decisive else "dim"
                console.print(Text(to_printable(describe_part(part)), style=style), soft_wrap=True)
        for found in item.inputs if not in_brief else ():
            console.print(Text(f"    {to_printable(describe_input(found))}", style="dim"), soft_wrap=True)


def print_trial(console: Console, answer: guardrails_pb2.TryRulebookResponse) -> None:
    """Print the problems of tried rulebooks, or the results of the actions and tests."""
    for problem in answer.problems:
        place = f"{problem.file}:{problem.line}: {problem.where}: {problem.reason}"
        console.print(Text(to_printable(place), style="red"), soft_wrap=True)
    if answer.problems:
        console.print(f"{count_noun(answer.problem_count, 'problem')}.")
        return
    for each in answer.actions:
        fired = [item for item in each.guardrails if item.outcome in FIRED]
        print_explanations(console, guardrails_pb2.ExplainGuardrailsResponse(verdict=each.verdict, guardrails=fired))
        console.print()
    for test in answer.tests:
        if not test.passed:
            console.print(Text(to_printable(f"{test.file}:{test.line}: {test.name}")), soft_wrap=True)
            for failure in test.failures:
                console.print(Text(to_printable(f"  {failure}")), soft_wrap=True)
    console.print(f"{sum(test.passed for test in answer.tests)} of {count_noun(len(answer.tests), 'test')} passed.")
    untried = [item.id for item in answer.coverage if not (item.fired or item.actions_fired)]
    if untried:
        console.print(Text(to_printable(f"Nothing fires {', '.join(untried)}."), style="yellow"), soft_wrap=True)
    if answer.truncated:
        console.print(Text("The rest was left out, because it takes too long.", style="yellow"))


FIRED = (guardrails_pb2.RULE_OUTCOME_MATCHED, guardrails_pb2.RULE_OUTCOME_UNEVALUABLE)


def explanation_headline(item: guardrails_pb2.GuardrailExplanation) -> Text:
    outcome = enum_word(guardrails_pb2.RuleOutcome, item.outcome)
    style = OUTCOME_STYLES.get(outcome, "")
    headline = Text(f"\n{to_printable(item.id)} ").append(outcome.replace("_", " "), style=style)
    if item.outcome == guardrails_pb2.RULE_OUTCOME_SKIPPED:
        return headline.append(f": {to_printable(item.reason)}")
    return headline.append(f"  {item.microseconds:.0f} us" if item.microseconds else "", style="dim")


def describe_part(part: guardrails_pb2.ExplainedPart) -> str:
    """Return a part of a condition with its value, on one line, marked with a star if it decides."""
    expression = " ".join(part.expression.split())
    if len(expression) > MAX_EXPRESSION:
        expression = f"{expression[: MAX_EXPRESSION - 1]}…"
    value = part.error if part.HasField("error") else part.value
    return f"  {'*' if part.decisive else ' '} {expression}  =  {value}"


def describe_input(item: guardrails_pb2.ExplainedInput) -> str:
    origin = enum_word(guardrails_pb2.InputOrigin, item.origin)
    value = f" {item.value}" if item.HasField("value") else ""
    alias = f" as {item.given_as}" if item.HasField("given_as") else ""
    problem = f": {item.problem}" if item.HasField("problem") else ""
    return f"{item.name}{value} ({origin}{alias}{problem})"
