"""Kills reports and reviews at a chosen step; `python -m tests.modules.intent_layer.killing` reads them as jobs.

A step is a call that changes a file or makes a change last. Each job runs in a process of its own, forked from one that
has no threads, and is killed right before a step; a write gets half of its way.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from cstp_grpc.modules.intent_layer.learning_review import Reviewer
from cstp_grpc.modules.intent_layer.learning_store import LearningStore
from cstp_grpc.modules.intent_layer.model import LearningType, NewLearning, ReviewRequest, ReviewVerdict
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree

AT = datetime(2026, 2, 7, tzinfo=UTC)
STEPS = ("open", "write", "fsync", "rename", "link", "unlink", "mkdir", "fchmod")


@dataclass
class Steps:
    """Counts steps and notes them; at the one numbered `kill_at` the process dies."""

    kill_at: int | None
    taken: list[list[Any]] = field(default_factory=list)

    def watch(self) -> None:
        for name in STEPS:
            setattr(os, name, self._watched(name, getattr(os, name)))

    def _watched(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **options: Any) -> Any:
            if name == "open" and not args[1] & os.O_CREAT:
                return call(*args, **options)
            if len(self.taken) == self.kill_at:
                if name == "write":
                    call(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **options)
            self.taken.append([name, *(_plain(arg) for arg in args), *([result] if name == "open" else [])])
            return result

        return watched


@dataclass
class Killer:
    """The other end: has reviews carried out and killed."""

    process: subprocess.Popen[str]

    def review(self, root: Path, request: ReviewRequest, kill_at: int | None = None) -> list[list[Any]] | None:
        """Review a learning; return the steps taken, or None where it was killed."""
        return self._run({"root": str(root), "review": [request.id, request.verdict], "kill_at": kill_at})

    def settle(self, root: Path, kill_at: int | None = None) -> list[list[Any]] | None:
        """Settle what a review left; return the steps taken, or None where it was killed."""
        return self._run({"root": str(root), "kill_at": kill_at})

    def report(self, root: Path, title: str, kill_at: int | None = None) -> list[list[Any]] | None:
        """File a learning about the root; return the steps taken, or None where it was killed."""
        return self._run({"root": str(root), "report": title, "kill_at": kill_at})

    def _run(self, job: dict[str, Any]) -> list[list[Any]] | None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        answer: list[list[Any]] | None = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def started() -> Iterator[Killer]:
    command = [sys.executable, "-m", "tests.modules.intent_layer.killing"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Killer(process)


def main(jobs: IO[str], answers: IO[str]) -> None:
    for line in jobs:
        job = json.loads(line)
        read_end, write_end = os.pipe()
        child = os.fork()
        if not child:
            os.close(read_end)
            _work(job, write_end)
        os.close(write_end)
        with os.fdopen(read_end) as pipe:
            answer = pipe.read()
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        assert killed or os.waitstatus_to_exitcode(status) == 0
        answers.write((answer or "null") + "\n")
        answers.flush()


def _work(job: dict[str, Any], answer: int) -> None:
    """Do a job and end the process."""
    code = 1
    try:
        tree = ProjectTree(Path(job["root"]))
        steps = Steps(job["kill_at"])
        write = os.write
        steps.watch()
        if "report" in job:
            new = NewLearning(LearningType.PITFALL, (".",), job["report"], "In full", "worker-3")
            LearningStore(tree, lambda: AT).file(new)
        elif "review" in job:
            learning_id, verdict = job["review"]
            request = ReviewRequest(learning_id, ReviewVerdict(verdict), "alice", "Seen twice")
            Reviewer(tree, lambda: AT).review(request)
        else:
            Reviewer(tree, lambda: AT).recover()
        write(answer, json.dumps(steps.taken).encode())
        code = 0
    finally:
        os._exit(code)


def synced_in_order(taken: Iterable[Sequence[Any]]) -> bool:
    """Whether each file was synced before it was put in its place, the folder right after, and all at the end."""
    steps = list(taken)
    unsynced: set[int] = set()
    for number, (name, *args) in enumerate(steps):
        if name == "write":
            unsynced.add(args[0])
        elif name == "fsync":
            unsynced.discard(args[0])
        elif name in ("rename", "link") and (
            unsynced or "fsync" not in [step for step, *_ in steps[number + 1 : number + 3]]
        ):
            return False
    return not unsynced and steps[-1][0] == "fsync"


def _plain(arg: Any) -> Any:
    return arg if isinstance(arg, str | int) else None


if __name__ == "__main__":
    main(sys.stdin, sys.stdout)
