"""Reviews of learnings: a learning is merged into a node or rejected, completely or not at all.

A review changes two files, the node and the report, and a machine may stop between any two steps. They are:

1. Under an exclusive lock, a journal file announces the review. From here on every later review, by any process,
   first settles the announced review and then removes the journal.
2. The node is replaced: a complete copy next to it takes its name in one step. This decides: a review that got here
   will be finished, one that did not never happened.
3. Copies of the node with the same content are replaced likewise.
4. The report is replaced by one that says who, when and why.
5. The report is moved to the folder of its new state.
6. The journal is removed.

Each step is on disk before the next one begins. A stop during 1 leaves a part of a journal that nobody reads. Between 1
and 2 the node is as it was, and settling removes the journal. From 2 on settling takes steps 3 to 6; it reads
each file before it changes it, so it may itself be stopped and restarted. A rejected or deferred learning has no
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
from datetime import UTC, datetime

from cstp_grpc.common.lazy_dataclass import asdict, dataclass
from cstp_grpc.contract.errors import Conflict, CstpError, InvalidArgument, Unavailable
from cstp_grpc.modules.intent_layer import durable_files, learning_merge, learning_store, model
from cstp_grpc.modules.intent_layer.duplicate_search import (
    WORD_OVERLAP_THRESHOLD,
    RecordedSimilarity,
    StatementsChanged,
    TextSimilarity,
    find_duplicates,
)
from cstp_grpc.modules.intent_layer.node_document import parse_node
from cstp_grpc.modules.intent_layer.project_files import is_in_repository, name_of, parent_of
from cstp_grpc.modules.intent_layer.project_tree import MAX_FILE_BYTES, ProjectTree
from cstp_grpc.modules.intent_layer.report_format import add_review, has_review

LOCK_FILE = ".review.lock"
"""The file that reviews lock. It is never removed: two processes could then hold locks on two files of that name."""
JOURNAL_FILE = ".review.journal"
JOURNAL_TEMPORARY_FILE = ".review.journal.tmp"
TEMPORARY_FILE = ".intent-layer-review.tmp"
"""The name of a file until it is complete, in the folder where it is going to be."""
JOURNAL_FORMAT = "review 1"
"""The key of a journal's content, with the version of its format."""
MAX_REASON = 2000
MAX_SECTION = 200
LOCK_TIMEOUT_SECONDS = 10.0
"""Seconds that a review waits for another one. Chosen: a review takes milliseconds, so that a longer wait means a
process that hangs.
"""
LOCK_POLL_SECONDS = 0.01
"""Seconds between two attempts to lock; flock(2) has no timeout of its own."""

STATE_AFTER_VERDICT = {
    model.ReviewVerdict.ACCEPT: model.LearningState.INTEGRATED,
    model.ReviewVerdict.REJECT: model.LearningState.REJECTED,
}


class LikelyDuplicate(Conflict):
    """A node contains likely the same as the learning; `duplicates` lists where, most similar first."""

    def __init__(self, duplicates: tuple[model.DuplicateMatch, ...]) -> None:
        first = duplicates[0]
        super().__init__(
            f"{first.file}, line {first.line}, says likely the same; force the review to merge it all the same",
            metadata={"file": first.file, "line": str(first.line), "score": f"{first.score:.2f}"},
        )
        self.duplicates = duplicates


@dataclass(frozen=True, slots=True)
class _NodeChange:
    """A change to a node's file, with the content hashes; `before` is None for a new file.

    `marks` counts the source lines of the report in the content before.
    """

    file: str
    before: str | None
    after: str
    marks: int


@dataclass(frozen=True, slots=True)
class _ReviewJournal:
    """The write-ahead journal of a review.

    `changes` has the node first, then its copies; it is empty unless the review accepts.
    """

    id: str
    review: model.LearningReview
    mark: str
    changes: tuple[_NodeChange, ...] = ()


@dataclass(frozen=True, slots=True)
class _PlannedMerge:
    """The planned merge of a learning: node file, diff, duplicates, changes, and the new content."""

    node: str
    diff: str
    duplicates: tuple[model.DuplicateMatch, ...]
    changes: tuple[_NodeChange, ...]
    content: bytes


class Reviewer:
    """Reviews the learnings of a project; safe for several threads and processes."""

    def __init__(
        self,
        tree: ProjectTree,
        clock: Callable[[], datetime],
        similarity: TextSimilarity | None = None,
        threshold: float = WORD_OVERLAP_THRESHOLD,
        lock_timeout: float = LOCK_TIMEOUT_SECONDS,
    ) -> None:
        self._tree = tree
        self._clock = clock
        self._similarity = similarity
        self._threshold = threshold
        self._lock_timeout = lock_timeout
        self._learnings = learning_store.LearningStore(tree, clock)

    def review(
        self, request: model.ReviewRequest, before: Callable[[model.Learning], None] = lambda _: None
    ) -> model.ReviewOutcome:
        """Accept, reject or defer a learning; the result is on disk before this returns.

        A dry run returns the outcome, also if it would be refused as a likely duplicate. Raises InvalidArgument for an
        invalid request, and for a node that is too large or leads out of the project; NotFound; Conflict if the
        learning was reviewed already, or the node cannot be changed or changes meanwhile; LikelyDuplicate; Unavailable.
        `before` is called when only the writing is left; an exception from it prevents the writing. A dry run never
        calls it.
        """
        _check_request(request)
        similarity = RecordedSimilarity(self._similarity) if self._similarity else None
        # Ends: the statements change only with another review that succeeds, or an edit by hand.
        while True:
            self._compare_meanings(request, similarity)
            with suppress(StatementsChanged):
                return self._review(request, before, similarity)

    def _compare_meanings(self, request: model.ReviewRequest, similarity: RecordedSimilarity | None) -> None:
        """Compare the statements of the node that a learning is to be merged into.

        It takes seconds, so it happens before the lock is held; under the lock, only its results are used.
        """
        if similarity is None or request.verdict is not model.ReviewVerdict.ACCEPT:
            return
        similarity.is_complete = False
        # Errors of the request are reported under the lock.
        with suppress(CstpError):
            self._compare(self._learnings.get(request.id), request.edits, similarity)
        similarity.is_complete = True

    def _review(
        self,
        request: model.ReviewRequest,
        before: Callable[[model.Learning], None],
        similarity: RecordedSimilarity | None,
    ) -> model.ReviewOutcome:
        """Review a learning under the lock. Raises as `review` does, and StatementsChanged."""
        with self._hold_lock() as mistakes:
            if mistakes is None:
                raise learning_store.learning_not_found(request.id)
            # First, so that a learning whose review was interrupted is reviewed in its new state.
            self._recover(mistakes)
            learning = self._require_pending(request)
            accepts = request.verdict is model.ReviewVerdict.ACCEPT
            merge_ = self._plan_merge(learning, request.edits, similarity) if accepts else None
            if not request.dry_run:
                if merge_ and merge_.duplicates and not request.force:
                    raise LikelyDuplicate(merge_.duplicates)
                review = model.LearningReview(
                    request.verdict, _reviewer_signature(request), request.reason, self._clock()
                )
                self._check_room(learning.id, review)
                # Nothing was changed yet: a caller that cannot store its audit record prevents the review here.
                before(learning)
                self._carry_out(mistakes, learning, review, merge_)
                learning = self._learnings.get(request.id)
        if merge_ is None:
            return model.ReviewOutcome(learning)
        return model.ReviewOutcome(learning, merge_.node, merge_.diff, merge_.duplicates)

    def recover(self) -> None:
        """Roll an interrupted review forward or back; every review begins with this. Raises Unavailable."""
        with self._hold_lock() as mistakes:
            if mistakes is not None:
                self._recover(mistakes)

    @contextmanager
    def _hold_lock(self) -> Iterator[int | None]:
        """Open the folder of the reports and hold the review lock; yield None if the folder is missing."""
        with durable_files.open_folder(self._tree, self._tree.locate(learning_store.REPORTS_FOLDER)) as mistakes:
            if mistakes is None:
                yield None
                return
            with _open_lock_file(mistakes) as lock:
                self._wait_for(lock)
                yield mistakes

    def _wait_for(self, lock: int) -> None:
        deadline = time.monotonic() + self._lock_timeout
        pause = threading.Event()
        while True:
            try:
                # The lock belongs to the open file, so that it also excludes other threads of this process, which open
                # the file themselves. The kernel releases it if the process is killed.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Unavailable("another review is under way") from None
            except OSError:
                raise Unavailable(f"{learning_store.REPORTS_FOLDER} cannot be locked") from None
            pause.wait(LOCK_POLL_SECONDS)

    def _require_pending(self, request: model.ReviewRequest) -> model.Learning:
        learning = self._learnings.get(request.id)
        if learning.state is not model.LearningState.PENDING:
            raise Conflict(f"{request.id} was reviewed already; it is {learning.state}")
        # A report of the same name in the folder it would move to: moving would replace it.
        for state in STATE_AFTER_VERDICT.values():
            if self._tree.exists(f"{self._learnings.folder(state)}/{learning_store.report_file_name(request.id)}"):
                raise Conflict(f"there is another {request.id} that is {state}")
        return learning

    def _compare(
        self, learning: model.Learning, edits: model.LearningEdits, similarity: RecordedSimilarity | None
    ) -> tuple[learning_merge.NodeEntry, model.Node | None, list[model.DuplicateMatch]]:
        entry = learning_merge.entry_for_learning(learning, edits)
        node = learning_merge.covering_node(self._tree, tuple(self._tree.locate(path) for path in learning.paths))
        documents = [self._tree.document(file.path) for file in node.all_files] if node else []
        found = [find_duplicates(each, entry, self._threshold, similarity) for each in documents if each]
        return entry, node, [duplicate for duplicates in found for duplicate in duplicates]

    def _plan_merge(
        self, learning: model.Learning, edits: model.LearningEdits, similarity: RecordedSimilarity | None
    ) -> _PlannedMerge:
        """Plan the merge of a learning into its node."""
        entry, node, duplicates = self._compare(learning, edits, similarity)
        files = learning_merge.target_files(self._tree, node, entry.section)
        # Located, so that a link and its target are changed once.
        targets = list(dict.fromkeys(self._tree.locate(file) for file in files))
        before = self._text(targets[0])
        after = learning_merge.insert_entry(parse_node(before or "", targets[0]), entry)
        content = after.encode()
        if len(content) > MAX_FILE_BYTES:
            raise Conflict(f"{files[0]} would be larger than {MAX_FILE_BYTES} bytes")
        old = None if before is None else before.encode()
        return _PlannedMerge(
            node=files[0],
            diff=learning_merge.unified_diff(files[0], before, after),
            duplicates=tuple(sorted(duplicates, key=lambda duplicate: -duplicate.score)),
            changes=tuple(_make_change(target, old, content, entry) for target in targets),
            content=content,
        )

    def _text(self, file: str) -> str | None:
        """Return a node's text, or None if it is missing. Raises Conflict if it is not UTF-8."""
        data = self._tree.read(file)
        try:
            return None if data is None else data.decode()
        except UnicodeDecodeError:
            raise Conflict(f"{file} is not UTF-8 and must be changed by hand") from None

    def _carry_out(
        self, mistakes: int, learning: model.Learning, review: model.LearningReview, merge_: _PlannedMerge | None
    ) -> None:
        journal = _ReviewJournal(
            learning.id, review, learning_merge.source_line_for(learning.id), merge_.changes if merge_ else ()
        )
        # kill -9 up to here leaves at most a temporary file, which the next review removes; from here on the journal is
        # settled first by the next review, see `_recover`.
        durable_files.replace_file(mistakes, JOURNAL_FILE, _encode_journal(journal), None, JOURNAL_TEMPORARY_FILE)
        try:
            if merge_ and not self._replace_node(merge_.changes[0], merge_.content):
                raise Conflict(f"{merge_.node} changed while it was reviewed; try again")
            self._roll_forward(journal)
        except CstpError:
            # The journal stays if this fails too, and the next review settles it. The caller gets the first error.
            with suppress(CstpError):
                self._recover(mistakes)
            raise
        durable_files.remove_file(mistakes, JOURNAL_FILE)

    def _recover(self, mistakes: int) -> None:
        content = durable_files.read_file(mistakes, JOURNAL_FILE)
        if content is None:
            durable_files.remove_file(mistakes, JOURNAL_TEMPORARY_FILE)
            return
        journal = _decode_journal(content.data)
        # Each step may be repeated: a recovery that is killed leaves the journal, and the next one starts over.
        if self._is_committed(journal):
            self._roll_forward(journal)
        self._remove_temporaries(journal)
        durable_files.remove_file(mistakes, JOURNAL_FILE)

    def _is_committed(self, journal: _ReviewJournal) -> bool:
        if not journal.changes:
            report = self._report(journal.id)
            # A report that is gone was moved, which is the step after the commit point.
            return report is None or has_review(report.data, journal.review)
        change = journal.changes[0]
        node = self._content(change.file)
        if node is None or _content_hash(node.data) == change.before:
            return False
        return _content_hash(node.data) == change.after or node.data.count(journal.mark.encode()) > change.marks

    def _roll_forward(self, journal: _ReviewJournal) -> None:
        """Take the steps after the commit point that have not been taken."""
        if journal.changes:
            node = self._content(journal.changes[0].file)
            # Only from a node that is as the review left it: if somebody edited it since, its copies are theirs to make
            # equal.
            for copy in journal.changes[1:]:
                if node and _content_hash(node.data) == copy.after:
                    self._replace_node(copy, node.data)
        pending = self._learnings.folder(model.LearningState.PENDING)
        name = learning_store.report_file_name(journal.id)
        with durable_files.open_folder(self._tree, pending) as folder:
            report = None if folder is None else durable_files.read_file(folder, name, learning_store.MAX_REPORT_BYTES)
            if folder is None or report is None:
                return
            if not has_review(report.data, journal.review):
                durable_files.replace_file(
                    folder, name, add_review(report.data, journal.review), report.mode, TEMPORARY_FILE
                )
            if journal.review.verdict in STATE_AFTER_VERDICT:
                reviewed = self._learnings.folder(STATE_AFTER_VERDICT[journal.review.verdict])
                with durable_files.ensure_folder(self._tree, reviewed) as target:
                    durable_files.move_file(folder, target, name)

    def _remove_temporaries(self, journal: _ReviewJournal) -> None:
        folders = {parent_of(change.file) for change in journal.changes}
        for path in (*folders, self._learnings.folder(model.LearningState.PENDING)):
            with durable_files.open_folder(self._tree, path) as folder:
                if folder is not None:
                    durable_files.remove_file(folder, TEMPORARY_FILE)

    def _replace_node(self, change: _NodeChange, content: bytes) -> bool:
        """Replace a node's file; return False and change nothing if its content is not the expected one."""
        name = name_of(change.file)
        with durable_files.open_folder(self._tree, parent_of(change.file)) as folder:
            if folder is None:
                return False
            old = durable_files.read_file(folder, name)
            # Written before the content is compared, so that little time is left in which an editor may save.
            durable_files.write_temporary(folder, content, old.mode if old else None, TEMPORARY_FILE)
            if change.before is None:
                # A new node: link_new fails if somebody created one meanwhile.
                replaced = durable_files.link_new(folder, name, TEMPORARY_FILE)
            else:
                now = durable_files.read_file(folder, name)
                replaced = now is not None and _content_hash(now.data) == change.before
                if replaced:
                    durable_files.rename_over(folder, name, TEMPORARY_FILE)
            if not replaced:
                durable_files.remove_file(folder, TEMPORARY_FILE)
            return replaced

    def _check_room(self, learning_id: str, review: model.LearningReview) -> None:
        """Raise Conflict if the report with one more review would be too large to be read."""
        report = self._report(learning_id)
        if report and len(add_review(report.data, review)) > learning_store.MAX_REPORT_BYTES:
            raise Conflict(f"the report of {learning_id} has no room for another review; shorten it by hand")

    def _content(self, file: str, limit: int = MAX_FILE_BYTES) -> durable_files.FileContent | None:
        with durable_files.open_folder(self._tree, parent_of(file)) as folder:
            return None if folder is None else durable_files.read_file(folder, name_of(file), limit)

    def _report(self, learning_id: str) -> durable_files.FileContent | None:
        file = f"{self._learnings.folder(model.LearningState.PENDING)}/{learning_store.report_file_name(learning_id)}"
        return self._content(file, learning_store.MAX_REPORT_BYTES)


def _check_request(request: model.ReviewRequest) -> None:
    learning_store.check_id(request.id)
    for name in (request.reviewer, request.claimed_reviewer):
        if name is not None:
            learning_store.check_line("reviewer", name, learning_store.MAX_AGENT_ID)
    learning_store.check_text("reason", request.reason or "-", MAX_REASON)
    edits = request.edits
    if edits.title is not None:
        learning_store.check_line("edits.title", edits.title, learning_store.MAX_TITLE)
    if edits.detail is not None:
        learning_store.check_text("edits.detail", edits.detail, learning_store.MAX_TEXT)
    if edits.section is not None:
        learning_store.check_line("edits.section", edits.section, MAX_SECTION)


def _reviewer_signature(request: model.ReviewRequest) -> str:
    """Return the reviewer's name for the report.

    A claimed name comes last and quoted, so that it cannot pass for the real one.
    """
    if request.claimed_reviewer in (None, request.reviewer):
        return request.reviewer
    # JSON escapes quotes and line ends, so that the claimed name cannot end its quotation.
    return f"{request.reviewer}, for {json.dumps(request.claimed_reviewer, ensure_ascii=False)}"


@contextmanager
def _open_lock_file(mistakes: int) -> Iterator[int]:
    try:
        lock = os.open(LOCK_FILE, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=mistakes)
    except OSError:
        raise Unavailable(f"{learning_store.REPORTS_FOLDER}/{LOCK_FILE} cannot be opened") from None
    try:
        yield lock
    finally:
        os.close(lock)


def _make_change(file: str, before: bytes | None, after: bytes, entry: learning_merge.NodeEntry) -> _NodeChange:
    marks = (before or b"").count(entry.mark.encode())
    return _NodeChange(file, None if before is None else _content_hash(before), _content_hash(after), marks)


def _content_hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _encode_journal(journal: _ReviewJournal) -> bytes:
    content = asdict(journal)
    content["review"]["at"] = journal.review.at.isoformat()
    return json.dumps({JOURNAL_FORMAT: content}, indent=1).encode()


def _decode_journal(data: bytes) -> _ReviewJournal:
    """Decode a journal. Raises Unavailable for an invalid one, which an operator must inspect."""
    try:
        content = json.loads(data)[JOURNAL_FORMAT]
        review = content["review"]
        journal = _ReviewJournal(
            id=content["id"],
            review=model.LearningReview(
                model.ReviewVerdict(review["verdict"]),
                review["reviewer"],
                review["reason"],
                datetime.fromisoformat(review["at"]).astimezone(UTC),
            ),
            mark=content["mark"],
            changes=tuple(_NodeChange(**change) for change in content["changes"]),
        )
        # The journal is a file that anybody may have written: its names become paths.
        learning_store.check_id(journal.id)
        in_repository = any(is_in_repository(change.file) for change in journal.changes)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidArgument):
        raise Unavailable(
            f"{learning_store.REPORTS_FOLDER}/{JOURNAL_FILE} cannot be read; look at it and remove it"
        ) from None
    if in_repository:
        # A journal may come with a clone of a repository; it must not write the files that name programs git runs.
        raise Unavailable(
            f"{learning_store.REPORTS_FOLDER}/{JOURNAL_FILE} is none of a review; look at it and remove it"
        )
    return journal
