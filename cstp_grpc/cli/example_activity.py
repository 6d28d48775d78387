"""Replays the activity of invented agents into a new journal of a developer's server, at times before its start.

The calls are real ones, answered in this process with the rules of the server and a clock that is set back, so that
decisions, verdicts, approvals and the audit trail belong together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any, Final

from cstp_grpc.cli.developer_setup import read_activity
from cstp_grpc.client import call_steps
from cstp_grpc.contract.errors import CstpError
from cstp_grpc.gen import calls
from cstp_grpc.platform.config import Settings
from cstp_grpc.server.local.local_agent import LocalAgent

WEEK_DAYS: Final = 7
CALL_SECONDS: Final = 30.0
ACTION_FIELDS: Final = ("category", "stakes", "confidence", "command")
CLOSED_AFTER: Final = timedelta(minutes=18)


@dataclass(frozen=True, slots=True, order=True)
class ExampleStep:
    """One thing that an example agent does; `number` orders steps of one instant."""

    at: datetime
    number: int
    agent: str = field(compare=False)
    kind: str = field(compare=False)
    values: Mapping[str, Any] = field(compare=False)


def replay_activity(settings: Settings, now: datetime) -> int:
    """Replay the activity into a journal, and return the number of calls. Raises as LocalAgent does."""
    replayed = ActivityReplay(settings)
    with closing(replayed):
        for step in sorted(read_steps(now)):
            replayed.take(step)
    return replayed.calls


def read_steps(now: datetime) -> Iterator[ExampleStep]:
    """Yield the steps of the example agents before an instant, in the order of the file."""
    activity = read_activity()
    for number, each in enumerate(activity["decisions"]):
        at = now - timedelta(days=each["days"])
        yield ExampleStep(at, number, each["by"], "decision", each)
        for review in each.get("reviews", ()):
            reviewed = {**review, "title": each["title"]}
            yield ExampleStep(at + timedelta(days=review["after"]), number, each["by"], "review", reviewed)
    for number, each in enumerate(activity["routine"]):
        for day in range(WEEK_DAYS):
            date = (now - timedelta(days=day)).date()
            for text in each["at"]:
                at = datetime.combine(date, time.fromisoformat(text), UTC) + timedelta(minutes=3 * day)
                if at < now - CLOSED_AFTER:
                    yield ExampleStep(at, number, each["by"], "action", each)
    for number, each in enumerate(activity["moments"]):
        yield ExampleStep(now - timedelta(hours=each["hours"]), number, each["by"], "action", each)


class ActivityReplay:
    """Makes the calls of steps, each as its agent and at its time."""

    def __init__(self, settings: Settings) -> None:
        self.calls = 0
        self._at = datetime.now(UTC)
        self._approver = read_activity()["approver"]
        self._local = LocalAgent(settings, self._approver, lambda: self._at)
        self._ids: dict[str, str] = {}
        """The decisions by their titles."""

    def close(self) -> None:
        self._local.close()

    def take(self, step: ExampleStep) -> None:
        """Take a step. A call that the rules or limits of the server refuse is left out."""
        with suppress(CstpError):
            if step.kind == "decision":
                self._record(step)
            elif step.kind == "review":
                review = step.values
                reviewed = calls.review_decision(self._ids[review["title"]], review["outcome"], notes=review["notes"])
                self._call(step.agent, step.at, reviewed)
            else:
                self._act(step)

    def _record(self, step: ExampleStep) -> None:
        given = {name: step.values[name] for name in ("category", "stakes", "confidence", "project", "tags")}
        described = calls.record_decision(step.values["title"], date=step.at, visibility="shared", **given)
        self._ids[step.values["title"]] = self._call(step.agent, step.at, described).decision.id

    def _act(self, step: ExampleStep) -> None:
        """Check or announce an action, and decide on its approval or close its intent."""
        each = step.values
        fields = {name: each[name] for name in ACTION_FIELDS if name in each}
        if "intent" in each:
            announced = f"example-{step.number}-{step.at:%Y%m%d%H%M}"
            described: Any = calls.announce_intent(
                each["intent"], correlation_id=announced, metadata=each.get("context"), visibility="shared", **fields
            )
            answer = self._call(step.agent, step.at, described)
            if "close" in each and answer.guardrail_status.allowed:
                self._call(step.agent, step.at + CLOSED_AFTER, calls.close_intent(announced, each["close"]))
            return
        checked = calls.check_guardrails(
            each["check"], context=each.get("context"), project=each.get("project"), **fields
        )
        answer = self._call(step.agent, step.at, checked)
        for word, decide in (("approve", calls.grant_approval), ("deny", calls.deny_approval)):
            if word in each and answer.HasField("approval"):
                at = step.at + timedelta(minutes=each[word]["after"])
                self._call(self._approver, at, decide(answer.approval.id, comment=each[word]["comment"]))
                # The agent asks again, which uses the approval or reports the comment.
                self._call(step.agent, at + timedelta(minutes=1), checked)

    def _call(self, agent: str, at: datetime, described: Any) -> Any:
        """Call a method as an agent at an instant. Raises CstpError."""
        self._at = at
        self._local.act_as(agent)
        method = call_steps.method_of_call(described)
        answer = self._local.start_call(method, [call_steps.build_request(described)], CALL_SECONDS).result()
        self.calls += 1
        return answer
