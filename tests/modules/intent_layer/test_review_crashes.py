"""A review happens as a whole or not at all, whenever it is killed and whoever else reviews."""

from __future__ import annotations

import multiprocessing
import random
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from cstp_grpc.contract.errors import Conflict
from cstp_grpc.modules.intent_layer.learning_review import Reviewer
from cstp_grpc.modules.intent_layer.model import (
    ReviewRequest,
)
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from tests.modules.intent_layer.filed_reports import (
    ACCEPT,
    DEFER,
    FILES,
    INTEGRATED,
    MISTAKES,
    PENDING,
    REJECT,
    ROOT_NODE,
    STATES,
    filed,
    learnings_of,
    review,
    snapshot,
)
from tests.modules.intent_layer.killing import AT, Killer, started, synced_in_order
from tests.modules.intent_layer.trees import write_tree

# Killing


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with started() as killer:
        yield killer


SCENES = {
    "accept": (ACCEPT, "src/api/handlers.ts", "src/api/AGENTS.md", FILES),
    "accept into a node and its copy": (ACCEPT, "src", "CLAUDE.md", {**FILES, "AGENTS.md": ROOT_NODE}),
    "accept into a new node": (ACCEPT, "src", "CLAUDE.md", {"src/": ""}),
    "reject": (REJECT, "src/api", "src/api/AGENTS.md", FILES),
    "defer": (DEFER, "src/api", "src/api/AGENTS.md", FILES),
}


class Scene:
    """A project with a learning to review, as often as wanted."""

    def __init__(self, folder: Path, name: str) -> None:
        self.verdict, self.path, self.node, files = SCENES[name]
        self._template = write_tree(folder / "template", files)
        self._folder = folder
        self._copies = count()
        self.learning = filed(self._template, path=self.path)
        self.request = ReviewRequest(self.learning.id, self.verdict, "alice", "Seen twice")
        self.before = snapshot(self._template)
        done = self.copy()
        review(done, self.learning, self.verdict)
        self.after = snapshot(done)
        shutil.rmtree(done)

    def copy(self) -> Path:
        return Path(shutil.copytree(self._template, self._folder / str(next(self._copies))))


QUICK_SCENES = ("accept", "reject")
"""Those that are tried where time is short."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=() if name in QUICK_SCENES else pytest.mark.slow) for name in SCENES],
)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene(tmp_path_factory.mktemp("scene"), request.param)


def steps_of(killer: Killer, root: Path, request: ReviewRequest) -> int:
    taken = killer.review(root, request)
    assert taken
    shutil.rmtree(root)
    return len(taken)


def test_after_a_kill_at_any_step_the_next_run_leaves_one_of_two_states(killer: Killer, scene: Scene) -> None:
    outcomes = []
    for step in range(steps_of(killer, scene.copy(), scene.request)):
        project = scene.copy()
        assert killer.review(project, scene.request, step) is None
        assert [each.id for each in learnings_of(project)] == [scene.learning.id]
        Reviewer(ProjectTree(project), lambda: AT).recover()
        assert snapshot(project) in (scene.before, scene.after)
        outcomes.append(snapshot(project) == scene.after)
        shutil.rmtree(project)
    assert outcomes == sorted(outcomes), "once decided, it stays decided"
    assert not outcomes[0]
    assert outcomes[-1]


def test_after_a_kill_the_next_review_settles_and_goes_on(killer: Killer, scene: Scene) -> None:
    for step in range(0, steps_of(killer, scene.copy(), scene.request), 3):
        project = scene.copy()
        other = filed(project, "Routes are matched in order", path=scene.path, detail="First wins.")
        assert killer.review(project, scene.request, step) is None
        review(project, other)
        states = {each.id: each.state for each in learnings_of(project)}
        assert states[other.id] is INTEGRATED
        if states[scene.learning.id] is PENDING:
            review(project, scene.learning, scene.verdict)
        texts = "".join(path.read_text() for path in project.rglob("*.md") if ".intent-layer" not in path.parts)
        copies = 2 if scene.after.get("AGENTS.md") == scene.after.get("CLAUDE.md") else 1
        assert texts.count(f"_Source: {scene.learning.id}.md_") == (copies if scene.verdict is ACCEPT else 0)
        assert texts.count(f"_Source: {other.id}.md_") == copies
        shutil.rmtree(project)


@pytest.mark.slow
def test_settling_may_be_killed_too(killer: Killer, scene: Scene) -> None:
    randomness = random.Random(4)
    steps = steps_of(killer, scene.copy(), scene.request)
    for _ in range(40):
        kill_again(killer, scene, randomness.randrange(steps), randomness.randrange(12), randomness.randrange(12))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_settling_may_be_killed_at_any_step(killer: Killer, scene: Scene) -> None:
    for step in range(steps_of(killer, scene.copy(), scene.request)):
        project = scene.copy()
        killer.review(project, scene.request, step)
        settling = len(killer.settle(project) or [])
        shutil.rmtree(project)
        for second in range(settling):
            kill_again(killer, scene, step, second)


def kill_again(killer: Killer, scene: Scene, step: int, *settling: int) -> None:
    """Kill a review and then those that settle it, if they take so many steps."""
    project = scene.copy()
    assert killer.review(project, scene.request, step) is None
    for kill_at in settling:
        killer.settle(project, kill_at)
        assert [each.id for each in learnings_of(project)] == [scene.learning.id]
    Reviewer(ProjectTree(project), lambda: AT).recover()
    assert snapshot(project) in (scene.before, scene.after)
    shutil.rmtree(project)


def edit(node: Path, before: bytes | str | None, how: str) -> bytes | None:
    """Edit a node as somebody does who knows nothing of reviews; return what it says then."""
    if how == "removes":
        node.unlink(missing_ok=True)
        return None
    old = before if isinstance(before, bytes) else b""
    text = (node.read_bytes() if how == "adds to what is there" and node.exists() else old) + b"\nEdited.\n"
    node.write_bytes(text)
    return text


@pytest.mark.parametrize("how", ["adds to what is there", "adds to what was there", "removes"])
def test_what_somebody_edited_after_a_kill_stays(killer: Killer, scene: Scene, how: str) -> None:
    for step in range(steps_of(killer, scene.copy(), scene.request)):
        project = scene.copy()
        assert killer.review(project, scene.request, step) is None
        node = project / scene.node
        text = edit(node, scene.before.get(scene.node), how)
        Reviewer(ProjectTree(project), lambda: AT).recover()
        assert (node.read_bytes() if node.exists() else None) == text
        (learning,) = learnings_of(project)
        assert learning.state in (PENDING, STATES[scene.verdict])
        if scene.verdict is ACCEPT and how == "adds to what is there":
            assert (learning.state is INTEGRATED) == (f"_Source: {learning.id}.md_".encode() in (text or b""))
        assert not (project / MISTAKES / ".review.journal").exists()
        shutil.rmtree(project)


def test_everything_is_on_disk_before_it_gets_its_name_and_before_the_answer(killer: Killer, scene: Scene) -> None:
    taken = killer.review(scene.copy(), scene.request)
    assert taken
    assert synced_in_order(taken)


# Several at once


def contend(root: str, ids: list[str], start: Callable[[], object], outcomes: multiprocessing.Queue[str]) -> None:
    start()
    for learning_id in ids:
        try:
            request = ReviewRequest(learning_id, ACCEPT, "alice", force=True)
            Reviewer(ProjectTree(Path(root)), lambda: AT, lock_timeout=60).review(request)
        except Conflict:
            outcomes.put(f"{learning_id} conflict")
        else:
            outcomes.put(f"{learning_id} accepted")


def test_of_reviewers_at_once_one_wins(project: Path) -> None:
    ids = [filed(project, f"Rule {n}").id for n in range(10)]
    reviewers = 2
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(reviewers, timeout=60)
    outcomes = context.Queue()
    processes = [
        context.Process(target=contend, args=(str(project), ids, barrier.wait, outcomes)) for _ in range(reviewers)
    ]
    for process in processes:
        process.start()
    results = [outcomes.get(timeout=60) for _ in range(reviewers * len(ids))]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * reviewers
    node = (project / "src/api/AGENTS.md").read_bytes().decode()
    for learning_id in ids:
        assert results.count(f"{learning_id} accepted") == 1
        assert results.count(f"{learning_id} conflict") == reviewers - 1
        assert node.count(f"_Source: {learning_id}.md_") == 1
    assert {each.state for each in learnings_of(project)} == {INTEGRATED}


def test_threads_review_one_after_the_other(project: Path) -> None:
    ids = [filed(project, f"Rule {n}").id for n in range(8)]
    reviewer = Reviewer(ProjectTree(project), lambda: AT, lock_timeout=60)

    def accept(learning_id: str) -> None:
        with suppress(Conflict):
            reviewer.review(ReviewRequest(learning_id, ACCEPT, "alice", force=True))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(accept, ids * 2))
    node = (project / "src/api/AGENTS.md").read_bytes().decode()
    assert [node.count(f"_Source: {learning_id}.md_") for learning_id in ids] == [1] * 8
