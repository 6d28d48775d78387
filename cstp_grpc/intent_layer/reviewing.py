"""Reviews: what was learned goes into a node, or away, and either all of it happens or nothing.

A review changes two files, the node and the report, and a machine may stop between any two steps. They are:

1. Under an exclusive lock, a journal file says what is going to happen. From here on every later review, by whichever
   process, first settles what the journal says and then removes it.
2. The node is replaced: a complete copy beside it takes its name in one step. This decides: a review that got here
   will be finished, one that did not never happened.
3. Copies of the node with the same content are replaced likewise.
4. The report is replaced by one that says who, when and why.
5. The report is moved to the folder of its new state.
6. The journal is removed.

Each step is on disk before the next one begins. A stop during 1 leaves a part of a journal that nobody reads. Between
1 and 2 the node is as it was, and settling removes the journal. From 2 on settling takes steps 3 to 6; it looks at what
each file says before it changes it, so it may itself be stopped and begun again. A rejected or deferred learning has no
node: there step 4 decides.

Whether step 2 was taken is told by the node's content: that of before or that of afterwards, as the journal's hashes
say. Where it is neither, somebody edited the node meanwhile, and it decides whether the line that names the report has
been added. Edits stay in both cases, since settling writes no node that is not as it was, and notes the review in the
report as it is then. An editor that saves in the instant between the last look at the node and its replacement is the
one thing that no lock of ours can keep out.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from cstp_grpc.errors import Conflict, CstpError, InvalidArgument, Unavailable
from cstp_grpc.intent_layer import durable
from cstp_grpc.intent_layer.duplicates import THRESHOLD, Similarity, find_duplicates
from cstp_grpc.intent_layer.markdown import parse
from cstp_grpc.intent_layer.merging import Entry, covering, entry_of, mark_of, merge, target_files, unified_diff
from cstp_grpc.intent_layer.model import (
    Duplicate,
    Edits,
    Learning,
    LearningState,
    Review,
    ReviewOutcome,
    ReviewRequest,
    ReviewVerdict,
)
from cstp_grpc.intent_layer.paths import in_repository, name_of, parent_of
from cstp_grpc.intent_layer.pending import (
    MAX_AGENT_ID,
    MAX_REPORT_BYTES,
    MAX_TEXT,
    MAX_TITLE,
    MISTAKES,
    Learnings,
    check_id,
    check_line,
    check_text,
    name_of_report,
    not_found,
)
from cstp_grpc.intent_layer.reports import add_review, has_review
from cstp_grpc.intent_layer.tree import MAX_FILE_BYTES, Tree

LOCK = ".review.lock"
JOURNAL = ".review.journal"
JOURNAL_TEMPORARY = ".review.journal.tmp"
TEMPORARY = ".intent-layer-review.tmp"
"""The name of a file until it is complete, in the folder where it is going to be."""
JOURNAL_FORMAT = "review 1"
"""What a journal holds is under this name; another format gets another one."""
MAX_REASON = 2000
MAX_SECTION = 200
PATIENCE = 10.0
"""How many seconds a review waits for another one."""
PAUSE = 0.01

MOVES = {ReviewVerdict.ACCEPT: LearningState.INTEGRATED, ReviewVerdict.REJECT: LearningState.REJECTED}


class LikelyDuplicate(Conflict):
    """A node says likely the same as what was to be merged; `duplicates` says where, the likeliest first."""

    def __init__(self, duplicates: tuple[Duplicate, ...]) -> None:
        first = duplicates[0]
        super().__init__(
            f"{first.file}, line {first.line}, says likely the same; force the review to merge it all the same",
            metadata={"file": first.file, "line": str(first.line), "score": f"{first.score:.2f}"},
        )
        self.duplicates = duplicates


@dataclass(frozen=True, slots=True)
class _Change:
    """A node's file, links resolved, with the hashes of its content; `before` is None for one that is new.

    `marks` is how often its content of before names the report.
    """

    file: str
    before: str | None
    after: str
    marks: int


@dataclass(frozen=True, slots=True)
class _Journal:
    """What a review is about to do: the node first, then its copies; nothing of these unless it accepts."""

    id: str
    review: Review
    mark: str
    changes: tuple[_Change, ...] = ()


@dataclass(frozen=True, slots=True)
class _Merge:
    """What accepting does to nodes: the file that names the node, the changes, and the content of the first."""

    node: str
    diff: str
    duplicates: tuple[Duplicate, ...]
    changes: tuple[_Change, ...]
    content: bytes


class Reviewer:
    """Reviews the learnings of a project; any number of them, in any number of processes, may work at once."""

    def __init__(
        self,
        tree: Tree,
        clock: Callable[[], datetime],
        similarity: Similarity | None = None,
        threshold: float = THRESHOLD,
        patience: float = PATIENCE,
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._similarity = similarity
        self._threshold = threshold
        self._patience = patience
        self._learnings = Learnings(tree, clock)

    def review(self, request: ReviewRequest, before: Callable[[Learning], None] = lambda _: None) -> ReviewOutcome:
        """Accept, reject or defer a learning; it is on disk before this returns.

        A dry run says what would happen, also where it would be refused as a likely duplicate. Raises InvalidArgument
        for a request that cannot be, and for a node that is too large or leads out of the project; NotFound; Conflict
        where the learning was reviewed already, where the node cannot be changed or changes meanwhile; LikelyDuplicate;
        Unavailable. `before` is called when only the writing is left; what it raises keeps that from happening. A dry
        run calls it never.
        """
        _check(request)
        with self._locked() as mistakes:
            if mistakes is None:
                raise not_found(request.id)
            self._settle(mistakes)
            learning = self._pending(request)
            merge_ = self._merge(learning, request.edits) if request.verdict is ReviewVerdict.ACCEPT else None
            if not request.dry_run:
                if merge_ and merge_.duplicates and not request.force:
                    raise LikelyDuplicate(merge_.duplicates)
                review = Review(request.verdict, _signature(request), request.reason, self._clock())
                self._check_room(learning.id, review)
                before(learning)
                self._carry_out(mistakes, learning, review, merge_)
                learning = self._learnings.get(request.id)
        if merge_ is None:
            return ReviewOutcome(learning)
        return ReviewOutcome(learning, merge_.node, merge_.diff, merge_.duplicates)

    def settle(self) -> None:
        """Finish or undo what a review left that was stopped; every review begins with this. Raises Unavailable."""
        with self._locked() as mistakes:
            if mistakes is not None:
                self._settle(mistakes)

    @contextmanager
    def _locked(self) -> Iterator[int | None]:
        """Open the folder of the reports, and keep other reviews out; None where nothing was ever reported."""
        with durable.opened(self._tree, self._tree.locate(MISTAKES)) as mistakes:
            if mistakes is None:
                yield None
                return
            with _opened_lock(mistakes) as lock:
                self._wait_for(lock)
                yield mistakes

    def _wait_for(self, lock: int) -> None:
        deadline = time.monotonic() + self._patience
        pause = threading.Event()
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable("another review is under way") from None
            except OSError:
                raise Unavailable(f"{MISTAKES} cannot be locked") from None
            pause.wait(PAUSE)

    def _pending(self, request: ReviewRequest) -> Learning:
        learning = self._learnings.get(request.id)
        if learning.state is not LearningState.PENDING:
            raise Conflict(f"{request.id} was reviewed already; it is {learning.state}")
        for state in MOVES.values():
            if self._tree.exists(f"{self._learnings.folder(state)}/{name_of_report(request.id)}"):
                raise Conflict(f"there is another {request.id} that is {state}")
        return learning

    def _merge(self, learning: Learning, edits: Edits) -> _Merge:
        """Return what accepting a learning does."""
        entry = entry_of(learning, edits)
        node = covering(self._tree, tuple(self._tree.locate(path) for path in learning.paths))
        files = target_files(self._tree, node, entry.section)
        documents = [self._tree.document(file.path) for file in node.all_files] if node else []
        duplicates = [
            duplicate
            for document in documents
            if document
            for duplicate in find_duplicates(document, entry, self._threshold, self._similarity)
        ]
        targets = list(dict.fromkeys(self._tree.locate(file) for file in files))
        before = self._text(targets[0])
        after = merge(parse(before or "", targets[0]), entry)
        content = after.encode()
        if len(content) > MAX_FILE_BYTES:
            raise Conflict(f"{files[0]} would be larger than {MAX_FILE_BYTES} bytes")
        old = None if before is None else before.encode()
        return _Merge(
            node=files[0],
            diff=unified_diff(files[0], before, after),
            duplicates=tuple(sorted(duplicates, key=lambda duplicate: -duplicate.score)),
            changes=tuple(_change(target, old, content, entry) for target in targets),
            content=content,
        )

    def _text(self, file: str) -> str | None:
        """Return a node's text to be written back; None where there is none."""
        data = self._tree.read(file)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            raise Conflict(f"{file} is not UTF-8 and must be changed by hand") from None

    def _carry_out(self, mistakes: int, learning: Learning, review: Review, merge_: _Merge | None) -> None:
        journal = _Journal(learning.id, review, mark_of(learning.id), merge_.changes if merge_ else ())
        durable.replace(mistakes, JOURNAL, _written(journal), None, JOURNAL_TEMPORARY)
        try:
            if merge_ and not self._replace(merge_.changes[0], merge_.content):
                raise Conflict(f"{merge_.node} changed while it was reviewed; try again")
            self._finish(journal)
        except CstpError:
            # What cannot be settled now will be before the next review; the reason of the failure is what counts.
            with suppress(CstpError):
                self._settle(mistakes)
            raise
        durable.remove(mistakes, JOURNAL)

    def _settle(self, mistakes: int) -> None:
        content = durable.read(mistakes, JOURNAL)
        if content is None:
            durable.remove(mistakes, JOURNAL_TEMPORARY)
            return
        journal = _read(content.data)
        if self._decided(journal):
            self._finish(journal)
        self._clear(journal)
        durable.remove(mistakes, JOURNAL)

    def _decided(self, journal: _Journal) -> bool:
        """Return whether a review got as far as the step that decides."""
        if not journal.changes:
            report = self._report(journal.id)
            return report is None or has_review(report.data, journal.review)
        change = journal.changes[0]
        node = self._content(change.file)
        if node is None or _hash(node.data) == change.before:
            return False
        return _hash(node.data) == change.after or node.data.count(journal.mark.encode()) > change.marks

    def _finish(self, journal: _Journal) -> None:
        """Take the steps after the node's, as far as they have not been taken."""
        if journal.changes:
            node = self._content(journal.changes[0].file)
            for copy in journal.changes[1:]:
                if node and _hash(node.data) == copy.after:
                    self._replace(copy, node.data)
        pending = self._learnings.folder(LearningState.PENDING)
        name = name_of_report(journal.id)
        with durable.opened(self._tree, pending) as folder:
            report = None if folder is None else durable.read(folder, name, MAX_REPORT_BYTES)
            if folder is None or report is None:
                return
            if not has_review(report.data, journal.review):
                durable.replace(folder, name, add_review(report.data, journal.review), report.mode, TEMPORARY)
            if journal.review.verdict in MOVES:
                reviewed = self._learnings.folder(MOVES[journal.review.verdict])
                with durable.created(self._tree, reviewed) as target:
                    durable.move(folder, target, name)

    def _clear(self, journal: _Journal) -> None:
        """Remove what was being written."""
        folders = {parent_of(change.file) for change in journal.changes}
        for path in (*folders, self._learnings.folder(LearningState.PENDING)):
            with durable.opened(self._tree, path) as folder:
                if folder is not None:
                    durable.remove(folder, TEMPORARY)

    def _replace(self, change: _Change, content: bytes) -> bool:
        """Replace a node's file; False where it is not as it was, and stays as it is."""
        name = name_of(change.file)
        with durable.opened(self._tree, parent_of(change.file)) as folder:
            if folder is None:
                return False
            old = durable.read(folder, name)
            durable.stage(folder, content, old.mode if old else None, TEMPORARY)
            if change.before is None:
                replaced = durable.put_new(folder, name, TEMPORARY)
            else:
                now = durable.read(folder, name)
                replaced = now is not None and _hash(now.data) == change.before
                if replaced:
                    durable.put(folder, name, TEMPORARY)
            if not replaced:
                durable.remove(folder, TEMPORARY)
            return replaced

    def _check_room(self, learning_id: str, review: Review) -> None:
        """Raise Conflict where a report with one more review could not be read again."""
        report = self._report(learning_id)
        if report and len(add_review(report.data, review)) > MAX_REPORT_BYTES:
            raise Conflict(f"the report of {learning_id} has no room for another review; shorten it by hand")

    def _content(self, file: str, limit: int = MAX_FILE_BYTES) -> durable.Content | None:
        with durable.opened(self._tree, parent_of(file)) as folder:
            return None if folder is None else durable.read(folder, name_of(file), limit)

    def _report(self, learning_id: str) -> durable.Content | None:
        file = f"{self._learnings.folder(LearningState.PENDING)}/{name_of_report(learning_id)}"
        return self._content(file, MAX_REPORT_BYTES)


def _check(request: ReviewRequest) -> None:
    check_id(request.id)
    for name in (request.reviewer, request.claimed_reviewer):
        if name is not None:
            check_line("reviewer", name, MAX_AGENT_ID)
    check_text("reason", request.reason or "-", MAX_REASON)
    edits = request.edits
    if edits.title is not None:
        check_line("edits.title", edits.title, MAX_TITLE)
    if edits.detail is not None:
        check_text("edits.detail", edits.detail, MAX_TEXT)
    if edits.section is not None:
        check_line("edits.section", edits.section, MAX_SECTION)


def _signature(request: ReviewRequest) -> str:
    """Return who reviews; a claim comes last and in quotes, so that nothing in it can be taken for who it was."""
    if request.claimed_reviewer in (None, request.reviewer):
        return request.reviewer
    return f"{request.reviewer}, for {json.dumps(request.claimed_reviewer, ensure_ascii=False)}"


@contextmanager
def _opened_lock(mistakes: int) -> Iterator[int]:
    try:
        lock = os.open(LOCK, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=mistakes)
    except OSError:
        raise Unavailable(f"{MISTAKES}/{LOCK} cannot be opened") from None
    try:
        yield lock
    finally:
        os.close(lock)


def _change(file: str, before: bytes | None, after: bytes, entry: Entry) -> _Change:
    marks = (before or b"").count(entry.mark.encode())
    return _Change(file, None if before is None else _hash(before), _hash(after), marks)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _written(journal: _Journal) -> bytes:
    content = asdict(journal)
    content["review"]["at"] = journal.review.at.isoformat()
    return json.dumps({JOURNAL_FORMAT: content}, indent=1).encode()


def _read(data: bytes) -> _Journal:
    """Return a journal. Raises Unavailable for one that is none of ours, which somebody has to look at."""
    try:
        content = json.loads(data)[JOURNAL_FORMAT]
        review = content["review"]
        journal = _Journal(
            id=content["id"],
            review=Review(
                ReviewVerdict(review["verdict"]),
                review["reviewer"],
                review["reason"],
                datetime.fromisoformat(review["at"]).astimezone(UTC),
            ),
            mark=content["mark"],
            changes=tuple(_Change(**change) for change in content["changes"]),
        )
        check_id(journal.id)
        forged = any(in_repository(change.file) for change in journal.changes)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidArgument):
        raise Unavailable(f"{MISTAKES}/{JOURNAL} cannot be read; look at it and remove it") from None
    if forged:
        # A clone may bring a journal along; it must not change what tells git which programs to run.
        raise Unavailable(f"{MISTAKES}/{JOURNAL} is none of a review; look at it and remove it")
    return journal
