"""Options that several commands share, and the types of their values."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NoReturn

import click

from cstp_grpc.vocabulary import DecisionStatus, Outcome, Stakes

if TYPE_CHECKING:
    from cstp_grpc.calling import Json

Command = Callable[..., None]
Decorator = Callable[[Command], Command]


CONFIDENCE = click.FloatRange(0, 1)
LIMIT = click.IntRange(min=1)


def instant(text: str) -> datetime:
    """Return the aware instant that ISO 8601 writes; without a zone it is UTC. Raises click.BadParameter."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a date like 2026-01-31 or 2026-01-31T12:00:00Z") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def json_object(text: str) -> dict[str, Json]:
    """Return a JSON object. Raises click.BadParameter."""
    try:
        content = parse_json(text)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise click.BadParameter('must be a JSON object like {"key": true}')
    return content


def assignment(text: str) -> tuple[str, Json]:
    """Return key and value of `key=value`, the value a text where it is no JSON. Raises click.BadParameter."""
    key, value = pair(text)
    try:
        return key, parse_json(value)
    except ValueError:
        return key, value


def pair(text: str) -> tuple[str, str]:
    """Return key and text of `key=text`. Raises click.BadParameter."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not of the form key=value")
    return key, value


def parse_json(text: str) -> Any:
    """Return a JSON value. Raises ValueError, also for NaN and infinity, which are no JSON."""

    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        return json.loads(text, parse_constant=refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def merged(assignments: Iterable[tuple[str, Json]], whole: Mapping[str, Json] | None, option: str) -> dict[str, Json]:
    """Return a JSON object given as a whole and key by key. Raises click.UsageError where a key is there twice."""
    found = dict(whole or {})
    for key, value in assignments:
        if key in found:
            raise click.UsageError(f"{option} gives {key!r} more than once.")
        found[key] = value
    return found


def words(kind: type[StrEnum]) -> click.Choice[str]:
    """Return a choice among the words of an enum."""
    return click.Choice([word.value for word in kind], case_sensitive=False)


def stacked(*options: Decorator) -> Decorator:
    """Return a decorator that adds options, listed in the order given."""
    return lambda command: functools.reduce(lambda inner, option: option(inner), reversed(options), command)


def inputs_options(name: str) -> Decorator:
    """Return a decorator that adds the inputs of the guardrails; the command gets them as one object, `inputs`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(*args: Any, inputs: dict[str, Json] | None, **kwargs: Any) -> None:
            command(*args, inputs=inputs or {}, **kwargs)

        return object_options(
            name,
            "inputs",
            "An input of the guardrails; the value is JSON, or else a text.",
            "The inputs of the guardrails as one JSON object.",
        )(wrapper)

    return decorate


def object_options(name: str, parameter: str, member_help: str, whole_help: str) -> Decorator:
    """Return a decorator that adds a JSON object, key by key and as a whole; the command gets it, or None."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def wrapper(
            *args: Any, assignments: Sequence[tuple[str, Json]], whole: Mapping[str, Json] | None, **kwargs: Any
        ) -> None:
            given = bool(assignments) or whole is not None
            command(*args, **{parameter: merged(assignments, whole, name) if given else None}, **kwargs)

        return stacked(
            click.option(name, "assignments", type=assignment, multiple=True, metavar="KEY=VALUE", help=member_help),
            click.option(f"{name}-json", "whole", type=json_object, metavar="JSON", help=whole_help),
        )(wrapper)

    return decorate


def judged_options(command: Command) -> Command:
    """Add what is said of an action or intent that is judged."""
    return stacked(
        click.option("--category", help="The kind of decision, for instance architecture."),
        click.option("--stakes", type=words(Stakes), help="What is at risk; medium when absent."),
        click.option("--confidence", type=CONFIDENCE, help="How sure you are, 0 to 1."),
    )(command)


def federated_options(command: Command) -> Command:
    """Add who answers: the agent that is called, or its peers too."""
    return stacked(
        click.option(
            "--scope",
            type=click.Choice(["local", "federated"]),
            help="Who answers: the agent that is called, or its peers too; as it is configured when absent.",
        ),
        click.option(
            "--ask", "asked", metavar="NAME", multiple=True, help="A peer of the agent to ask; may be repeated."
        ),
    )(command)


def filter_options(command: Command) -> Command:
    """Add conditions that decisions must meet; the command gets them as `filters`."""

    @functools.wraps(command)
    def wrapper(*args: Any, recorded_by: str | None, **kwargs: Any) -> None:
        # Not loaded before it is needed: it brings gRPC along.
        from cstp_grpc.client import decision_filters

        conditions = {name: kwargs.pop(name) for name in FILTER_NAMES}
        command(*args, filters=decision_filters(agent=recorded_by, **conditions), **kwargs)

    return stacked(
        click.option("--category", help="Exactly this category."),
        click.option("--min-confidence", type=CONFIDENCE, help="At least this confidence."),
        click.option("--max-confidence", type=CONFIDENCE, help="At most this confidence."),
        click.option("--after", "date_after", type=instant, metavar="DATE", help="Dated then or later."),
        click.option("--before", "date_before", type=instant, metavar="DATE", help="Dated then or earlier."),
        click.option("--stakes", type=words(Stakes), multiple=True, help="Any of these stakes."),
        click.option("--status", type=words(DecisionStatus), multiple=True, help="Any of these states."),
        click.option("--outcome", type=words(Outcome), multiple=True, help="Any of these outcomes."),
        click.option("--tag", "tags", multiple=True, help="All of these tags."),
        click.option("--project", help="Exactly this project."),
        click.option("--by", "recorded_by", metavar="AGENT", help="Recorded by exactly this agent."),
    )(wrapper)


FILTER_NAMES = (
    "category",
    "min_confidence",
    "max_confidence",
    "date_after",
    "date_before",
    "stakes",
    "status",
    "outcome",
    "tags",
    "project",
)
"""What `filter_options` adds besides the agent, whose option must not be called like the agent to call."""
