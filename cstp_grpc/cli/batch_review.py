"""Several learnings reviewed at once, without anybody being asked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cstp_grpc.cli.learning_editor import edit_learning
from cstp_grpc.cli.output import Output, printable
from cstp_grpc.cli.project import OTHERWISE
from cstp_grpc.cli.reviewing import HINT, Groups, Terms, counted, done, show_diff, show_duplicates
from cstp_grpc.errors import Conflict, CstpError
from cstp_grpc.intent_layer.model import Learning, ReviewOutcome, ReviewVerdict
from cstp_grpc.intent_layer.pending import Learnings
from cstp_grpc.intent_layer.reviewing import LikelyDuplicate, Reviewer


class SameAsAnother(Conflict):
    """A learning says likely the same as another one that was accepted with it."""

    def __init__(self, learning: Learning, accepted: Learning) -> None:
        super().__init__(f"{learning.id} says likely the same as {accepted.id}", metadata={"duplicate_of": accepted.id})


@dataclass(slots=True)
class BatchReview:
    """Carries out one verdict on many learnings; each is reviewed whatever comes of the others."""

    out: Output
    reviewer: Reviewer
    terms: Terms
    verdict: ReviewVerdict
    edit: bool = False
    with_diff: bool = False
    reject_duplicates: bool = False
    reviewed: int = 0
    duplicates: int = 0
    failures: int = 0
    _results: list[dict[str, Any]] = field(default_factory=list)

    def find(self, learnings: Learnings, ids: Iterable[str]) -> list[Learning]:
        """Return learnings by their identifiers; one that cannot be had is a failure, and hinders no other."""
        found = []
        for learning_id in ids:
            try:
                found.append(learnings.get(learning_id))
            except CstpError as error:
                self.failures += 1
                self._note(learning_id, error, None)
        return found

    def review(self, groups: Groups) -> None:
        """Review learnings; of those that likely say the same only the first is accepted, unless forced."""
        for group in groups:
            accepted: Learning | None = None
            for learning in group:
                if accepted and not self.terms.force:
                    self._review_duplicate(learning, accepted)
                elif self._review_one(learning) and self.verdict is ReviewVerdict.ACCEPT:
                    accepted = learning

    def print_summary(self) -> None:
        """Print how many were reviewed, or the results as JSON."""
        if self.out.json_wanted:
            self.out.document({"reviews": self._results})
            return
        said = [counted(self.reviewed, "review")]
        said += [f"{counted(self.duplicates, 'likely duplicate')} left"] if self.duplicates else []
        said += [f"{self.failures} failed"] if self.failures else []
        self.out.line(f"{', '.join(said)}.")
        if self.duplicates:
            self.out.note(
                "Merge duplicates all the same with --force, or reject those of accepted ones with --reject-duplicates."
            )

    @property
    def exit_code(self) -> int:
        """1 if anything failed, 2 if likely duplicates were left, 0 otherwise."""
        return 1 if self.failures else OTHERWISE if self.duplicates else 0

    def _review_duplicate(self, learning: Learning, accepted: Learning) -> None:
        if self.reject_duplicates:
            self._review_one(learning, ReviewVerdict.REJECT, self.terms.as_duplicate(accepted.id))
            return
        error = SameAsAnother(learning, accepted)
        self.duplicates += 1
        self._note(learning.id, error, HINT)

    def _review_one(self, learning: Learning, verdict: ReviewVerdict | None = None, terms: Terms | None = None) -> bool:
        verdict, terms = verdict or self.verdict, terms or self.terms
        try:
            if self.edit and verdict is ReviewVerdict.ACCEPT:
                terms = replace(terms, edits=edit_learning(learning, terms.edits))
            outcome = self.reviewer.review(terms.request(learning.id, verdict))
        except LikelyDuplicate as error:
            self.duplicates += 1
            if not self.out.json_wanted:
                show_duplicates(self.out, error.duplicates)
            self._note(learning.id, error, HINT)
            return False
        except CstpError as error:
            self.failures += 1
            self._note(learning.id, error, None)
            return False
        return self._count(learning, outcome, verdict, terms)

    def _count(self, learning: Learning, outcome: ReviewOutcome, verdict: ReviewVerdict, terms: Terms) -> bool:
        """Print and count what a review did; return whether it did, or would do, what was wanted."""
        hindered = bool(terms.dry_run and outcome.duplicates and not terms.force)
        self.duplicates += hindered
        self.reviewed += not hindered
        if self.out.json_wanted:
            from cstp_grpc.cli import answers
            from cstp_grpc.client import codec

            self._results.append({"id": learning.id, "result": codec.to_json(answers.reviewed(outcome))})
            return not hindered
        if self.with_diff:
            show_diff(self.out, outcome.diff)
        show_duplicates(self.out, outcome.duplicates)
        self.out.line(done(outcome, verdict, dry_run=terms.dry_run))
        return not hindered

    def _note(self, learning_id: str, error: CstpError, hint: str | None) -> None:
        if self.out.json_wanted:
            from cstp_grpc.cli.hints import as_json

            self._results.append({"id": learning_id, "error": as_json(error, hint)})
        else:
            self.out.note(printable(f"{learning_id}: {error.message}"))
