"""Reviews of learnings on the command line: one, a batch, or interactively.

A learning can be edited in an editor before it is merged.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import click

from cstp_grpc.cli.console import Text
from cstp_grpc.cli.output import Output, to_printable
from cstp_grpc.cli.project_folder import EXIT_NOT_APPLIED, ProjectFolder, utc_now
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.lazy_dataclass import dataclass, field, replace
from cstp_grpc.contract.errors import Conflict, CstpError, InvalidArgument
from cstp_grpc.modules.intent_layer.duplicate_search import group_duplicates
from cstp_grpc.modules.intent_layer.learning_merge import SECTION_FOR_TYPE
from cstp_grpc.modules.intent_layer.learning_review import LikelyDuplicate, Reviewer
from cstp_grpc.modules.intent_layer.learning_store import LearningQuery, LearningStore
from cstp_grpc.modules.intent_layer.model import (
    DuplicateMatch,
    Learning,
    LearningEdits,
    LearningState,
    ReviewOutcome,
    ReviewRequest,
    ReviewVerdict,
    UnreadableReportFile,
)
from cstp_grpc.platform.storage.pagination import MAX_SIZE, PageRequest

TITLE_PREFIX = "Title:"
SECTION_PREFIX = "Section:"


def edit_learning(learning: Learning, edits: LearningEdits) -> LearningEdits:
    """Open an editor on a learning and return the edits, on top of earlier ones.

    Raises InvalidArgument for a text of another form than the one offered, click.ClickException if the editor fails,
    click.UsageError if no editor is configured and there is no terminal.
    """
    _require_editor()
    offered = format_edit_buffer(learning, edits)
    edited = click.edit(offered, extension=".md")
    return edits if edited is None or edited == offered else parse_edit_buffer(edited, learning)


def format_edit_buffer(learning: Learning, edits: LearningEdits) -> str:
    """Return the text to edit: the title and the section on a line each, a blank line, and the detail."""
    title = " ".join((edits.title or learning.title).split())
    section = edits.section or SECTION_FOR_TYPE[learning.type]
    detail = learning.detail if edits.detail is None else edits.detail
    return f"{TITLE_PREFIX} {title}\n{SECTION_PREFIX} {section}\n\n{detail.rstrip()}\n"


def parse_edit_buffer(text: str, learning: Learning) -> LearningEdits:
    """Return the edits that a text makes to a learning. Raises InvalidArgument."""
    # Editors on Windows write a byte order mark and their own line ends.
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").split("\n", 2)
    if len(lines) < 3 or not lines[0].startswith(TITLE_PREFIX) or not lines[1].startswith(SECTION_PREFIX):
        raise InvalidArgument.field("edits", f"must begin with the lines {TITLE_PREFIX} and {SECTION_PREFIX}")
    title, section = lines[0].removeprefix(TITLE_PREFIX).strip(), lines[1].removeprefix(SECTION_PREFIX).strip()
    detail = lines[2].strip("\n")
    return LearningEdits(
        title=None if title == " ".join(learning.title.split()) else title,
        # None leaves a field as it was filed, so that the report does not say that somebody edited it.
        detail=None if detail.rstrip() == learning.detail.strip("\n").rstrip() else detail,
        section=None if section == SECTION_FOR_TYPE[learning.type] else section,
    )


def _require_editor() -> None:
    from cstp_grpc.platform.config import inherited_environment

    on_terminal = sys.stdin is not None and sys.stdin.isatty()
    if not on_terminal and not any(inherited_environment(("VISUAL", "EDITOR")).values()):
        raise click.UsageError("There is no terminal to edit on: set EDITOR, or give --title, --detail or --section.")


DUPLICATE_HINT = "Merge it all the same with --force, or --reject it."
EDIT_ANSWER = "edit"
SKIP_ANSWER = "skip"
QUIT_ANSWER = "quit"
ANSWER_BY_LETTER = {answer[0]: answer for answer in (*map(str, ReviewVerdict), EDIT_ANSWER, SKIP_ANSWER, QUIT_ANSWER)}
"""The possible answers by their first letters."""
STATE_COLOURS = {LearningState.PENDING: "yellow", LearningState.INTEGRATED: "green", LearningState.REJECTED: "dim"}
DIFF_COLOURS = {"+": "green", "-": "red", "@": "cyan"}

LearningGroups = Iterable[Sequence[Learning]]


@dataclass(frozen=True, slots=True)
class ReviewOptions:
    """The options of a review."""

    reviewer: str
    reason: str = ""
    edits: LearningEdits = field(default_factory=LearningEdits)
    force: bool = False
    dry_run: bool = False

    def request(self, learning_id: str, verdict: ReviewVerdict) -> ReviewRequest:
        return ReviewRequest(learning_id, verdict, self.reviewer, self.reason, self.edits, self.force, self.dry_run)

    def for_duplicate(self, learning_id: str) -> ReviewOptions:
        """Return the options to reject a learning that is the same as another."""
        return replace(self, reason=f"Says the same as {learning_id}", edits=LearningEdits(), force=False)


@dataclass(frozen=True, slots=True)
class InteractiveReview:
    """An interactive review of groups of learnings on a terminal."""

    out: Output
    reviewer: Reviewer
    terms: ReviewOptions

    def review(self, groups: LearningGroups) -> None:
        """Prompt for each group and apply the answer, until all are done or the reviewer quits."""
        found = False
        for group in groups:
            found = True
            if not self._review_group(group):
                return
        self.out.line("There are no more." if found else "Nothing is pending.")

    def _review_group(self, group: Sequence[Learning]) -> bool:
        """Review a group of likely duplicates; return False if the reviewer quits."""
        first, *others = group
        self._show(first, others)
        terms = self.terms
        while (answer := ask_verdict()) == EDIT_ANSWER:
            terms = self._edit(first, terms)
        if answer == QUIT_ANSWER:
            return False
        verdict = None if answer == SKIP_ANSWER else ReviewVerdict(answer)
        carried_out = verdict is not None and self._carry_out(first, verdict, terms)
        self.out.line("")
        # The others of a group go with the first one only if that was carried out; else each is asked for.
        if verdict is None or not others or (carried_out and self._review_others(first, others, verdict)):
            return True
        return all(self._review_group([each]) for each in others)

    def _review_others(self, first: Learning, others: Sequence[Learning], verdict: ReviewVerdict) -> bool:
        """Prompt for one verdict on the rest of a group and apply it; return False if declined."""
        if verdict is ReviewVerdict.ACCEPT:
            verdict, terms = ReviewVerdict.REJECT, self.terms.for_duplicate(first.id)
            question = f"Reject the {count_noun(len(others), 'other')} as duplicates?"
        else:
            terms = self.terms
            question = f"{verdict.capitalize()} the {count_noun(len(others), 'other')} too?"
        if not click.confirm(question, default=True):
            return False
        for each in others:
            self._carry_out(each, verdict, terms)
        self.out.line("")
        return True

    def _edit(self, learning: Learning, terms: ReviewOptions) -> ReviewOptions:
        try:
            terms = replace(terms, edits=edit_learning(learning, terms.edits))
        except (CstpError, click.ClickException) as error:
            self.out.note(f"Error: {to_printable(error.message)}")
        self._show_preview(learning, terms)
        return terms

    def _show(self, learning: Learning, others: Sequence[Learning]) -> None:
        self.out.line(learning_headline(learning))
        self.out.line(learning_details(learning))
        for text in filter(None, (learning.operation, learning.detail, learning.evidence)):
            self.out.line(Text(f"\n{text}"))
        for review in learning.reviews:
            line = f"{review.verdict} by {review.reviewer}, {review.at:%Y-%m-%d}: {review.reason}".rstrip(": ")
            self.out.line(Text(f"\n{to_printable(line)}", style="italic"))
        if others:
            self.out.line(f"\n{count_noun(len(others), 'other')} likely the same:")
        for other in others:
            self.out.line(learning_headline(other))
            self.out.line(learning_details(other))
        self.out.line("")
        self._show_preview(learning, self.terms)

    def _show_preview(self, learning: Learning, terms: ReviewOptions) -> None:
        try:
            outcome = self.reviewer.review(replace(terms, dry_run=True).request(learning.id, ReviewVerdict.ACCEPT))
        except CstpError as error:
            self.out.line(to_printable(f"It cannot be accepted: {error.message}"))
            return
        show_diff(self.out, outcome.diff)
        show_duplicates(self.out, outcome.duplicates)

    def _carry_out(self, learning: Learning, verdict: ReviewVerdict, terms: ReviewOptions) -> bool:
        """Apply a verdict; return whether it succeeded."""
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
            self.out.note(f"Error: {to_printable(error.message)}")
            return False
        self.out.line(outcome_line(outcome, verdict, dry_run=terms.dry_run))
        return True


def review_one(
    out: Output, reviewer: Reviewer, terms: ReviewOptions, learning_id: str, verdict: ReviewVerdict, *, with_diff: bool
) -> bool:
    """Review a learning and print the outcome. Return False if a likely duplicate prevents, or would prevent, it."""
    try:
        outcome = reviewer.review(terms.request(learning_id, verdict))
    except LikelyDuplicate as error:
        if out.json_wanted:
            from cstp_grpc.cli.error_hints import error_to_json

            out.print_error(error_to_json(error, DUPLICATE_HINT))
        else:
            show_duplicates(out, error.duplicates)
            out.note(DUPLICATE_HINT)
        return False
    show_outcome(out, outcome, verdict, terms, with_diff=with_diff)
    return terms.force or not (terms.dry_run and outcome.duplicates)


def ask_verdict() -> str:
    options = ", ".join(f"[{letter}]{answer[1:]}" for letter, answer in ANSWER_BY_LETTER.items())
    while True:
        given = str(click.prompt(options, default=SKIP_ANSWER, show_default=False)).strip().lower()
        for answer in ANSWER_BY_LETTER.values():
            if given and answer.startswith(given):
                return answer


def list_pending(learnings: LearningStore, out: Output, unreadable: list[UnreadableReportFile]) -> list[Learning]:
    """Return the pending learnings, oldest first. Unreadable reports are printed and added to `unreadable`."""
    query = LearningQuery(frozenset({LearningState.PENDING}))
    return list(iter_learnings(learnings, query, out, unreadable))[::-1]


def iter_learnings(
    learnings: LearningStore, query: LearningQuery, out: Output, unreadable: list[UnreadableReportFile] | None = None
) -> Iterator[Learning]:
    """Yield learnings, latest first; unreadable reports are printed and added to `unreadable`."""
    token = ""
    while True:
        page = learnings.page(query, PageRequest(MAX_SIZE, token))
        for each in page.unreadable:
            out.note(to_printable(f"{each.file}: {each.reason}"))
        if unreadable is not None:
            unreadable += page.unreadable
        yield from page.items
        token = page.next_token
        if not token:
            return


def learning_headline(learning: Learning) -> Text:
    text = Text(learning.state, style=STATE_COLOURS[learning.state])
    return text.append(to_printable(f" {learning.type}: {learning.title}"), style="bold not dim")


def learning_details(learning: Learning) -> Text:
    lines = [f"{learning.at:%Y-%m-%d}, {learning.agent_id}, {', '.join(learning.paths)}", learning.id]
    if learning.unplaced_paths:
        lines.append(f"not in this project: {', '.join(learning.unplaced_paths)}")
    return Text("\n".join(f"  {to_printable(line)}" for line in lines), style="dim")


def show_diff(out: Output, diff: str) -> None:
    if not out.console.is_terminal:
        out.write_verbatim(diff)
        return
    for line in diff.splitlines():
        out.line(Text(to_printable(line), style=DIFF_COLOURS.get(line[:1], "")))


def show_duplicates(out: Output, duplicates: Iterable[DuplicateMatch]) -> None:
    for each in duplicates:
        words = " ".join(each.text.split())
        out.note(to_printable(f"{each.file}:{each.line}: likely the same ({each.score:.2f}): {words}"))


def outcome_line(outcome: ReviewOutcome, verdict: ReviewVerdict, *, dry_run: bool) -> str:
    match verdict:
        case ReviewVerdict.ACCEPT:
            what = f"merged into {outcome.node}"
        case ReviewVerdict.REJECT:
            what = "rejected"
        case ReviewVerdict.DEFER:
            what = "deferred; it stays pending"
    learning = outcome.learning
    return to_printable(f"{learning.id} would be {what}." if dry_run else f"{learning.id} is {what}: {learning.file}")


def show_outcome(
    out: Output, outcome: ReviewOutcome, verdict: ReviewVerdict, terms: ReviewOptions, *, with_diff: bool
) -> None:
    if out.json_wanted:
        from cstp_grpc.modules.intent_layer import servicer

        out.message(servicer.OUTCOME.encode(outcome))
        return
    if with_diff:
        show_diff(out, outcome.diff)
    show_duplicates(out, outcome.duplicates)
    if not terms.dry_run or with_diff:
        out.line(outcome_line(outcome, verdict, dry_run=terms.dry_run))
    elif not outcome.duplicates:
        out.line("No node says the same.")


@dataclass(slots=True)
class BatchReview:
    """Applies one verdict to many learnings; the failure of one does not stop the others."""

    out: Output
    reviewer: Reviewer
    terms: ReviewOptions
    verdict: ReviewVerdict
    edit: bool = False
    with_diff: bool = False
    reject_duplicates: bool = False
    reviewed: int = 0
    duplicates: int = 0
    failures: int = 0
    _results: list[dict[str, Any]] = field(default_factory=list)

    def find(self, learnings: LearningStore, ids: Iterable[str]) -> list[Learning]:
        """Return learnings by their identifiers; one that cannot be read counts as a failure."""
        found = []
        for learning_id in ids:
            try:
                found.append(learnings.get(learning_id))
            except CstpError as error:
                self.failures += 1
                self._note(learning_id, error, None)
        return found

    def review(self, groups: LearningGroups) -> None:
        """Review groups of likely duplicates; only the first of a group is accepted, unless forced."""
        for group in groups:
            accepted: Learning | None = None
            for learning in group:
                if accepted and not self.terms.force:
                    self._review_duplicate(learning, accepted)
                elif self._review_one(learning) and self.verdict is ReviewVerdict.ACCEPT:
                    accepted = learning

    def print_summary(self) -> None:
        if self.out.json_wanted:
            self.out.document({"reviews": self._results})
            return
        parts = [count_noun(self.reviewed, "review")]
        parts += [f"{count_noun(self.duplicates, 'likely duplicate')} left"] if self.duplicates else []
        parts += [f"{self.failures} failed"] if self.failures else []
        self.out.line(f"{', '.join(parts)}.")
        if self.duplicates:
            self.out.note(
                "Merge duplicates all the same with --force, or reject those of accepted ones with --reject-duplicates."
            )

    @property
    def exit_code(self) -> int:
        """1 if anything failed, 2 if likely duplicates were not applied, 0 otherwise."""
        return 1 if self.failures else EXIT_NOT_APPLIED if self.duplicates else 0

    def _review_duplicate(self, learning: Learning, accepted: Learning) -> None:
        if self.reject_duplicates:
            self._review_one(learning, ReviewVerdict.REJECT, self.terms.for_duplicate(accepted.id))
            return
        message = f"{learning.id} says likely the same as {accepted.id}"
        error = Conflict(message, metadata={"duplicate_of": accepted.id})
        self.duplicates += 1
        self._note(learning.id, error, DUPLICATE_HINT)

    def _review_one(
        self, learning: Learning, verdict: ReviewVerdict | None = None, terms: ReviewOptions | None = None
    ) -> bool:
        verdict, terms = verdict or self.verdict, terms or self.terms
        try:
            if self.edit and verdict is ReviewVerdict.ACCEPT:
                terms = replace(terms, edits=edit_learning(learning, terms.edits))
            outcome = self.reviewer.review(terms.request(learning.id, verdict))
        except LikelyDuplicate as error:
            self.duplicates += 1
            if not self.out.json_wanted:
                show_duplicates(self.out, error.duplicates)
            self._note(learning.id, error, DUPLICATE_HINT)
            return False
        except CstpError as error:
            self.failures += 1
            self._note(learning.id, error, None)
            return False
        return self._count(learning, outcome, verdict, terms)

    def _count(self, learning: Learning, outcome: ReviewOutcome, verdict: ReviewVerdict, terms: ReviewOptions) -> bool:
        """Print and count an outcome; return whether the verdict was, or would be, applied."""
        hindered = bool(terms.dry_run and outcome.duplicates and not terms.force)
        self.duplicates += hindered
        self.reviewed += not hindered
        if self.out.json_wanted:
            from cstp_grpc.contract import json_codec
            from cstp_grpc.modules.intent_layer import servicer

            self._results.append({"id": learning.id, "result": json_codec.to_json(servicer.OUTCOME.encode(outcome))})
            return not hindered
        if self.with_diff:
            show_diff(self.out, outcome.diff)
        show_duplicates(self.out, outcome.duplicates)
        self.out.line(outcome_line(outcome, verdict, dry_run=terms.dry_run))
        return not hindered

    def _note(self, learning_id: str, error: CstpError, hint: str | None) -> None:
        if self.out.json_wanted:
            from cstp_grpc.cli.error_hints import error_to_json

            self._results.append({"id": learning_id, "error": error_to_json(error, hint)})
        else:
            self.out.note(to_printable(f"{learning_id}: {error.message}"))


def review_learnings(
    out: Output,
    project: ProjectFolder,
    ids: Sequence[str],
    verdict: ReviewVerdict | None,
    terms: ReviewOptions,
    threshold: float,
    *,
    edit: bool,
    with_diff: bool,
    reject_duplicates: bool,
) -> int:
    """Review learnings by their identifiers, or all that are pending without any, and return the exit code.

    Without a verdict each is shown on the terminal, and asked for. `threshold` is the overlap of words from which two
    learnings are likely the same.
    """
    filed = LearningStore(project.tree, utc_now)
    reviewer = Reviewer(project.tree, utc_now, threshold=threshold)
    if verdict is not None and len(ids) == 1:
        if edit:
            terms = replace(terms, edits=edit_learning(filed.get(ids[0]), terms.edits))
        return 0 if review_one(out, reviewer, terms, ids[0], verdict, with_diff=with_diff) else EXIT_NOT_APPLIED
    unreadable: list[UnreadableReportFile] = []
    if verdict is None:
        found = [filed.get(each) for each in ids] if ids else list_pending(filed, out, unreadable)
        InteractiveReview(out, reviewer, terms).review(group_duplicates(project.tree, found, threshold))
        return 0
    batch = BatchReview(out, reviewer, terms, verdict, edit, with_diff, reject_duplicates)
    found = batch.find(filed, ids) if ids else list_pending(filed, out, unreadable)
    batch.review(group_duplicates(project.tree, found, threshold))
    batch.print_summary()
    return 1 if unreadable else batch.exit_code
