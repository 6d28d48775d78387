"""The bounds of trials of rulebooks."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.audit.model import AuditEntry, AuditEvent, AuditFilter, JudgedAction
from cstp_grpc.core.guardrails import trials
from cstp_grpc.core.guardrails.evaluator import ALLOW_UNKNOWN
from cstp_grpc.core.guardrails.messages import trial_message
from cstp_grpc.core.guardrails.model import Action
from cstp_grpc.core.guardrails.trials import SentRulebook, replay_rulebooks, try_rulebooks
from cstp_grpc.platform.storage.pagination import Page, PageRequest
from tests.harness import TOKENS, running, settings

NOON = datetime(2026, 2, 4, 12, tzinfo=UTC)
BOOK = SentRulebook(
    "",
    """\
apiVersion: cstp.guardrails/v1
metadata: {name: mine, version: "1"}
inputs: {deletes: {type: bool, default: false}}
guardrails:
  - {id: no-deletion, name: No Deletion, severity: block, message: Ask first, when: context.deletes}
tests:
  - {name: A deletion, action: {description: Drop it, context: {deletes: true}}, expect: [no-deletion]}
""",
)
DELETION = Action("Drop it", context={"deletes": True}, agent="alice")


def test_what_takes_too_long_is_left_out() -> None:
    seconds = count(0.0, 1.0)

    report = try_rulebooks([BOOK], [DELETION] * 10, ALLOW_UNKNOWN, lambda: next(seconds))

    assert report.is_truncated
    assert 0 < len(report.actions) < 10
    assert report.tests == []


def test_an_answer_that_is_too_long_is_cut() -> None:
    report = try_rulebooks([BOOK], [DELETION] * 10, ALLOW_UNKNOWN)

    whole = trial_message(report, "server", 1_000_000)
    cut = trial_message(report, "server", whole.ByteSize() // 2)

    assert (len(whole.actions), whole.truncated, whole.coverage[0].actions_fired) == (10, False, 10)
    assert 0 < len(cut.actions) < 10
    assert cut.truncated
    assert cut.ByteSize() < whole.ByteSize() * 2 // 3


def test_failed_tests_that_are_too_long_are_cut() -> None:
    rules = "".join(
        f"  - {{id: r{number}, name: R, severity: block, message: Ask first, when: context.deletes}}\n"
        for number in range(100)
    )
    body, test = BOOK.text.split("tests:\n")
    text = f"{body}{rules}tests:\n{test * 20}"

    report = try_rulebooks([SentRulebook("", text)], [DELETION], ALLOW_UNKNOWN)
    message = trial_message(report, "server", 20_000)

    assert len(report.tests) == 20
    assert 0 < len(message.tests) < 20
    assert message.truncated
    assert message.ByteSize() < 22_000


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ([SentRulebook("a.yaml", "x" * 200_000), SentRulebook("b.yaml", "x" * 100_000)], "262144 bytes"),
        ([SentRulebook("a.yaml", "é" * 150_000)], "262144 bytes"),
        ([BOOK, SentRulebook("rulebook.yaml", "")], "different names"),
    ],
)
def test_rulebooks_out_of_bounds_are_refused(sent: Sequence[SentRulebook], reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        try_rulebooks(sent, [], ALLOW_UNKNOWN)


class RecordedChecks:
    """Recorded checks, in pages of two; as many as anybody asks for."""

    def __init__(self, end: int) -> None:
        self.end = end

    def read_page(self, conditions: AuditFilter, request: PageRequest) -> Page[AuditEntry]:
        start = int(request.token or 0)
        judged = JudgedAction(context={"deletes": True})
        entries = [
            AuditEntry(
                NOON - timedelta(seconds=number),
                AuditEvent.GUARDRAIL_CHECK,
                "alice",
                f"request-{number}",
                action="Drop it",
                allowed=True,
                judged=judged,
                id=number,
            )
            for number in range(start, min(start + 2, self.end))
        ]
        return Page(tuple(entries), str(start + 2) if start + 2 < self.end else "")


def test_a_replay_reports_its_progress_and_ends_with_a_summary() -> None:
    parts = [
        (part.summary.recorded, part.summary.newly_stopped, part.is_truncated, part.is_done)
        for part in replay_rulebooks([BOOK], AuditFilter(), RecordedChecks(5).read_page, ALLOW_UNKNOWN, None)
    ]

    assert parts == [(2, 2, True, False), (4, 4, True, False), (5, 5, False, False), (5, 5, False, True)]


def test_a_replay_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials, "MAX_REPLAYED", 4)

    *_, last = replay_rulebooks([BOOK], AuditFilter(), RecordedChecks(1000).read_page, ALLOW_UNKNOWN, 0)

    assert (last.summary.recorded, last.is_truncated, last.is_done) == (4, True, True)


def test_a_replay_ends_when_its_time_is_over_within_a_page() -> None:
    seconds = count(0.0, trials.REPLAY_SECONDS / 6)
    recorded = RecordedChecks(1000)

    *_, last = replay_rulebooks([BOOK], AuditFilter(), recorded.read_page, ALLOW_UNKNOWN, 0, lambda: next(seconds))

    assert last.is_done
    assert last.is_truncated
    assert 0 < last.summary.recorded < 6


def test_a_slow_replay_can_be_stopped_within_a_page() -> None:
    seconds = count(0.0, trials.PROGRESS_SECONDS)

    first, second, *_ = replay_rulebooks(
        [BOOK], AuditFilter(), RecordedChecks(3).read_page, ALLOW_UNKNOWN, 0, lambda: next(seconds)
    )

    assert (first.is_truncated, first.is_done) == (True, False)
    assert second.is_truncated


def test_invalid_rulebooks_are_not_replayed() -> None:
    parts = replay_rulebooks([SentRulebook("", "")], AuditFilter(), RecordedChecks(1).read_page, ALLOW_UNKNOWN, None)

    with pytest.raises(InvalidArgument, match=r"rulebook\.yaml:1"):
        next(parts)


def test_a_replay_before_the_first_week_of_all_has_no_actions(tmp_path: Path) -> None:
    with running(settings(tmp_path / "data")) as app, CstpClient(app.target, TOKENS["alice"]) as client:
        books = [{"text": BOOK.text}]

        *_, last = client.replay_rulebook(rulebooks=books, before=datetime(1, 1, 2, tzinfo=UTC), resume=False)

    assert last.report.recorded == 0
