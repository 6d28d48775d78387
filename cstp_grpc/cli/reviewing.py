"""Reviews of what agents learned: how they are shown, and asked for on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import click
from rich.text import Text

from cstp_grpc.cli.output import Output, printable
from cstp_grpc.errors import CstpError
from cstp_grpc.intent_layer.model import (
    Duplicate,
    Edits,
    Learning,
    LearningState,
    ReviewOutcome,
    ReviewRequest,
    ReviewVerdict,
    UnreadableReportFile,
)
from cstp_grpc.intent_layer.pending import LearningQuery, Learnings
from cstp_grpc.intent_layer.reviewing import LikelyDuplicate, Reviewer
from cstp_grpc.storage.paging import MAX_SIZE, PageRequest

HINT = "Merge it all the same with --force, or --reject it."
SKIP = "skip"
QUIT = "quit"
ANSWERS = {answer[0]: answer for answer in (*map(str, ReviewVerdict), SKIP, QUIT)}
"""What can be answered, by the letter that stands for it."""
STATE_COLOURS = {LearningState.PENDING: "yellow", LearningState.INTEGRATED: "green", LearningState.REJECTED: "dim"}
DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Terms:
    """How learnings are reviewed."""

    reviewer: str
    reason: str = ""
    section: str | None = None
    force: bool = False
    dry_run: bool = False

    def request(self, learning_id: str, verdict: ReviewVerdict) -> ReviewRequest:
        """Return a review."""
        edits = Edits(section=self.section)
        return ReviewRequest(learning_id, verdict, self.reviewer, self.reason, edits, self.force, self.dry_run)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A review of one learning after the other, by whoever sits at the terminal."""

    out: Output
    reviewer: Reviewer
    terms: Terms

    def review(self, learnings: Iterable[Learning]) -> None:
        """Show each learning and do what is answered, until there are no more or enough."""
        found = False
        for learning in learnings:
            found = True
            self._show(learning)
            answer = ask()
            if answer == QUIT:
                return
            if answer != SKIP:
                self._carry_out(learning, ReviewVerdict(answer))
            self.out.line("")
        self.out.line("There are no more." if found else "Nothing is pending.")

    def _show(self, learning: Learning) -> None:
        self.out.line(headline(learning))
        self.out.line(details(learning))
        for text in filter(None, (learning.operation, learning.detail, learning.evidence)):
            self.out.line(Text(f"\n{printable(text)}"))
        for review in learning.reviews:
            said = f"\n{review.verdict} by {review.reviewer}, {review.at:%Y-%m-%d}: {review.reason}".rstrip(": ")
            self.out.line(Text(printable(said), style="italic"))
        self.out.line("")
        try:
            preview = replace(self.terms, dry_run=True).request(learning.id, ReviewVerdict.ACCEPT)
            outcome = self.reviewer.review(preview)
        except CstpError as error:
            self.out.line(printable(f"It cannot be accepted: {error.message}"))
            return
        show_diff(self.out, outcome.diff)
        show_duplicates(self.out, outcome.duplicates)

    def _carry_out(self, learning: Learning, verdict: ReviewVerdict) -> None:
        reason = self.terms.reason or click.prompt("Why (may be empty)", default="", show_default=False)
        terms = replace(self.terms, reason=reason)
        try:
            try:
                outcome = self.reviewer.review(terms.request(learning.id, verdict))
            except LikelyDuplicate as error:
                show_duplicates(self.out, error.duplicates)
                if not click.confirm("Merge it all the same?"):
                    return
                outcome = self.reviewer.review(replace(terms, force=True).request(learning.id, verdict))
        except CstpError as error:
            self.out.note(f"Error: {printable(error.message)}")
            return
        self.out.line(done(outcome, verdict, dry_run=terms.dry_run))


def review_one(
    out: Output, reviewer: Reviewer, terms: Terms, learning_id: str, verdict: ReviewVerdict, *, with_diff: bool
) -> bool:
    """Carry out a review and print what came of it; return whether no duplicate stood, or would stand, in its way."""
    try:
        outcome = reviewer.review(terms.request(learning_id, verdict))
    except LikelyDuplicate as error:
        if out.json_wanted:
            from cstp_grpc.cli.hints import as_json

            out.problem(as_json(error, HINT))
        else:
            show_duplicates(out, error.duplicates)
            out.note(HINT)
        return False
    show(out, outcome, verdict, terms, with_diff=with_diff)
    return terms.force or not (terms.dry_run and outcome.duplicates)


def ask() -> str:
    """Ask what is to become of a learning."""
    options = ", ".join(f"[{letter}]{answer[1:]}" for letter, answer in ANSWERS.items())
    while True:
        given = str(click.prompt(options, default=SKIP, show_default=False)).strip().lower()
        for answer in ANSWERS.values():
            if given and answer.startswith(given):
                return answer


def pending(learnings: Learnings, out: Output) -> Iterator[Learning]:
    """Yield what is pending, the first filed first."""
    query = LearningQuery(frozenset({LearningState.PENDING}))
    return reversed(list(all_learnings(learnings, query, out)))


def all_learnings(
    learnings: Learnings, query: LearningQuery, out: Output, unreadable: list[UnreadableReportFile] | None = None
) -> Iterator[Learning]:
    """Yield learnings, the latest first; what cannot be read is noted, and added to `unreadable`."""
    token = ""
    while True:
        page = learnings.page(query, PageRequest(MAX_SIZE, token))
        for each in page.unreadable:
            out.note(printable(f"{each.file}: {each.reason}"))
        if unreadable is not None:
            unreadable += page.unreadable
        yield from page.items
        token = page.next_token
        if not token:
            return


def headline(learning: Learning) -> Text:
    """Return the state, the kind and the title of a learning."""
    text = Text(learning.state, style=STATE_COLOURS[learning.state])
    return text.append(printable(f" {learning.type}: {learning.title}"), style="bold not dim")


def details(learning: Learning) -> Text:
    """Return what there is to know of a learning beside what was learned."""
    lines = [f"{learning.at:%Y-%m-%d}, {learning.agent_id}, {', '.join(learning.paths)}", learning.id]
    if learning.unplaced_paths:
        lines.append(f"not in this project: {', '.join(learning.unplaced_paths)}")
    return Text(printable("\n".join(f"  {line}" for line in lines)), style="dim")


def show_diff(out: Output, diff: str) -> None:
    """Print a change to a node."""
    if not out.console.is_terminal:
        out.verbatim(diff)
        return
    for line in diff.splitlines():
        out.line(Text(printable(line), style=DIFF_COLOURS.get(line[:1], "")))


def show_duplicates(out: Output, duplicates: Iterable[Duplicate]) -> None:
    """Print on standard error what a node says already."""
    for each in duplicates:
        words = " ".join(each.text.split())
        out.note(printable(f"{each.file}:{each.line}: likely the same ({each.score:.2f}): {words}"))


def done(outcome: ReviewOutcome, verdict: ReviewVerdict, *, dry_run: bool) -> str:
    """Return what came of a review, or would come of it."""
    match verdict:
        case ReviewVerdict.ACCEPT:
            what = f"merged into {outcome.node}"
        case ReviewVerdict.REJECT:
            what = "rejected"
        case ReviewVerdict.DEFER:
            what = "deferred; it stays pending"
    learning = outcome.learning
    return printable(f"{learning.id} would be {what}." if dry_run else f"{learning.id} is {what}: {learning.file}")


def show(out: Output, outcome: ReviewOutcome, verdict: ReviewVerdict, terms: Terms, *, with_diff: bool) -> None:
    """Print what came of a review."""
    if out.json_wanted:
        from cstp_grpc.cli import answers

        out.message(answers.reviewed(outcome))
        return
    if with_diff:
        show_diff(out, outcome.diff)
    show_duplicates(out, outcome.duplicates)
    if not terms.dry_run or with_diff:
        out.line(done(outcome, verdict, dry_run=terms.dry_run))
    elif not outcome.duplicates:
        out.line("No node says the same.")
