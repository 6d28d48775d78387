"""Reviews of what agents learned: how they are shown, and asked for on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import click
from rich.text import Text

from cstp_grpc.cli.learning_editor import edit_learning
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
EDIT = "edit"
SKIP = "skip"
QUIT = "quit"
ANSWERS = {answer[0]: answer for answer in (*map(str, ReviewVerdict), EDIT, SKIP, QUIT)}
"""What can be answered, by the letter that stands for it."""
STATE_COLOURS = {LearningState.PENDING: "yellow", LearningState.INTEGRATED: "green", LearningState.REJECTED: "dim"}
DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

Groups = Iterable[Sequence[Learning]]


@dataclass(frozen=True, slots=True)
class Terms:
    """How learnings are reviewed."""

    reviewer: str
    reason: str = ""
    edits: Edits = field(default_factory=Edits)
    force: bool = False
    dry_run: bool = False

    def request(self, learning_id: str, verdict: ReviewVerdict) -> ReviewRequest:
        """Return a review."""
        return ReviewRequest(learning_id, verdict, self.reviewer, self.reason, self.edits, self.force, self.dry_run)

    def as_duplicate(self, learning_id: str) -> Terms:
        """Return the terms to reject a learning on that says the same as another."""
        return replace(self, reason=f"Says the same as {learning_id}", edits=Edits(), force=False)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A review of one group of learnings after the other, by whoever sits at the terminal."""

    out: Output
    reviewer: Reviewer
    terms: Terms

    def review(self, groups: Groups) -> None:
        """Show each group and do what is answered, until there are no more or enough."""
        found = False
        for group in groups:
            found = True
            if not self._review_group(group):
                return
        self.out.line("There are no more." if found else "Nothing is pending.")

    def _review_group(self, group: Sequence[Learning]) -> bool:
        """Review learnings that likely say the same; return False if the reviewer has enough."""
        first, *others = group
        self._show(first, others)
        terms = self.terms
        while (answer := ask()) == EDIT:
            terms = self._edit(first, terms)
        if answer == QUIT:
            return False
        verdict = None if answer == SKIP else ReviewVerdict(answer)
        carried_out = verdict is not None and self._carry_out(first, verdict, terms)
        self.out.line("")
        if verdict is None or not others or (carried_out and self._decide_alike(first, others, verdict)):
            return True
        return all(self._review_group([each]) for each in others)

    def _decide_alike(self, first: Learning, others: Sequence[Learning], verdict: ReviewVerdict) -> bool:
        """Ask for one decision on the others of a group, and carry it out; return False if there is none."""
        if verdict is ReviewVerdict.ACCEPT:
            verdict, terms = ReviewVerdict.REJECT, self.terms.as_duplicate(first.id)
            question = f"Reject the {counted(len(others), 'other')} as duplicates?"
        else:
            terms = self.terms
            question = f"{verdict.capitalize()} the {counted(len(others), 'other')} too?"
        if not click.confirm(question, default=True):
            return False
        for each in others:
            self._carry_out(each, verdict, terms)
        self.out.line("")
        return True

    def _edit(self, learning: Learning, terms: Terms) -> Terms:
        try:
            terms = replace(terms, edits=edit_learning(learning, terms.edits))
        except (CstpError, click.ClickException) as error:
            self.out.note(f"Error: {printable(error.message)}")
        self._show_preview(learning, terms)
        return terms

    def _show(self, learning: Learning, others: Sequence[Learning]) -> None:
        self.out.line(headline(learning))
        self.out.line(details(learning))
        for text in filter(None, (learning.operation, learning.detail, learning.evidence)):
            self.out.line(Text(f"\n{printable(text)}"))
        for review in learning.reviews:
            said = f"\n{review.verdict} by {review.reviewer}, {review.at:%Y-%m-%d}: {review.reason}".rstrip(": ")
            self.out.line(Text(printable(said), style="italic"))
        if others:
            self.out.line(f"\n{counted(len(others), 'other')} likely the same:")
        for other in others:
            self.out.line(headline(other))
            self.out.line(details(other))
        self.out.line("")
        self._show_preview(learning, self.terms)

    def _show_preview(self, learning: Learning, terms: Terms) -> None:
        """Show what accepting would change."""
        try:
            outcome = self.reviewer.review(replace(terms, dry_run=True).request(learning.id, ReviewVerdict.ACCEPT))
        except CstpError as error:
            self.out.line(printable(f"It cannot be accepted: {error.message}"))
            return
        show_diff(self.out, outcome.diff)
        show_duplicates(self.out, outcome.duplicates)

    def _carry_out(self, learning: Learning, verdict: ReviewVerdict, terms: Terms) -> bool:
        """Carry out a verdict; return whether that was done."""
        reason = terms.reason or click.prompt("Why (may be empty)", default="", show_default=False)
        terms = replace(terms, reason=reason)
        try:
            try:
                outcome = self.reviewer.review(terms.request(learning.id, verdict))
            except LikelyDuplicate as error:
                show_duplicates(self.out, error.duplicates)
                if not click.confirm("Merge it all the same?"):
                    return False
                outcome = self.reviewer.review(replace(terms, force=True).request(learning.id, verdict))
        except CstpError as error:
            self.out.note(f"Error: {printable(error.message)}")
            return False
        self.out.line(done(outcome, verdict, dry_run=terms.dry_run))
        return True


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


def pending(learnings: Learnings, out: Output, unreadable: list[UnreadableReportFile]) -> list[Learning]:
    """Return what is pending, the first filed first; what cannot be read is noted, and added to `unreadable`."""
    query = LearningQuery(frozenset({LearningState.PENDING}))
    return list(all_learnings(learnings, query, out, unreadable))[::-1]


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


def counted(count: int, noun: str) -> str:
    """Return a number of things in words."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
