"""A project with nodes and reports, and reviews of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

from cstp_grpc.modules.intent_layer.learning_review import Reviewer
from cstp_grpc.modules.intent_layer.learning_store import LearningQuery, LearningStore
from cstp_grpc.modules.intent_layer.model import (
    Learning,
    LearningState,
    LearningType,
    NewLearning,
    ReviewOutcome,
    ReviewRequest,
    ReviewVerdict,
)
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.platform.storage.pagination import PageRequest
from tests.modules.intent_layer.killing import AT

NOW = datetime(2026, 2, 6, 10, tzinfo=UTC)
MISTAKES = ".intent-layer/mistakes"
ROOT_NODE = "# Shop\n\n## Purpose\n\nSells.\n"
NODE = """# API

## Purpose

Serves.

## Pitfalls

- Never commit the .env file.

## Own

x""".replace("\n", "\r\n")
FILES = {"CLAUDE.md": ROOT_NODE, "src/api/AGENTS.md": NODE, "src/api/handlers.ts": "", "src/auth/login.ts": ""}
ACCEPT, REJECT, DEFER = ReviewVerdict.ACCEPT, ReviewVerdict.REJECT, ReviewVerdict.DEFER
PENDING, INTEGRATED, REJECTED = LearningState.PENDING, LearningState.INTEGRATED, LearningState.REJECTED
STATES = {ACCEPT: INTEGRATED, REJECT: REJECTED, DEFER: PENDING}


def ticking() -> Callable[[], datetime]:
    seconds = count()
    return lambda: NOW + timedelta(seconds=next(seconds))


def filed(
    project: Path, title: str = "Arrow functions", *, path: str = "src/api/handlers.ts", **fields: object
) -> Learning:
    given: dict[str, object] = {
        "type": LearningType.PITFALL,
        "paths": (path,),
        "detail": "Handlers are bare.",
        "agent_id": "worker-3",
        **fields,
    }
    return LearningStore(ProjectTree(project), ticking()).file(NewLearning(title=title, **given))  # type: ignore[arg-type]


def review(project: Path, learning: Learning | str, verdict: ReviewVerdict = ACCEPT, **fields: object) -> ReviewOutcome:
    learning_id = learning if isinstance(learning, str) else learning.id
    given: dict[str, object] = {"reviewer": "alice", "reason": "Seen twice", **fields}
    request = ReviewRequest(learning_id, verdict, **given)  # type: ignore[arg-type]
    return Reviewer(ProjectTree(project), lambda: AT).review(request)


def snapshot(project: Path) -> dict[str, bytes | str]:
    """Everything there is, but for the lock."""
    return {
        str(path.relative_to(project)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in sorted(project.rglob("*"))
        if path.is_symlink() or (path.is_file() and path.name != ".review.lock")
    }


def learnings_of(project: Path) -> list[Learning]:
    page = LearningStore(ProjectTree(project), lambda: NOW).page(LearningQuery(), PageRequest(1000))
    assert page.unreadable == ()
    return list(page.items)
