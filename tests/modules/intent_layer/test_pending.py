"""Learnings are filed whole and once, by however many at the same time, and found again."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.errors import InvalidArgument, NotFound, Unavailable
from cstp_grpc.modules.intent_layer.learning_store import LEARNING_ID, LearningQuery, LearningStore
from cstp_grpc.modules.intent_layer.model import Learning, LearningState, LearningType, NewLearning
from cstp_grpc.modules.intent_layer.project_files import common_folder
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from cstp_grpc.platform.storage.pagination import PageRequest
from tests.example_counts import examples
from tests.modules.intent_layer.killing import started, synced_in_order
from tests.modules.intent_layer.trees import write_tree
from tests.paging import walk

NOW = datetime(2026, 2, 6, 10, tzinfo=UTC)
PENDING = ".intent-layer/mistakes/pending"
PROCESSES = 4
REPORTS_EACH = 250


def new(title: str = "A title", *, path: str = "src/api/handlers.ts", **fields: object) -> NewLearning:
    given: dict[str, object] = {"type": LearningType.PITFALL, "detail": "In full", "agent_id": "worker-3", **fields}
    return NewLearning(title=title, **{"paths": (path,), **given})  # type: ignore[arg-type]


def ticking() -> Callable[[], datetime]:
    seconds = count()
    return lambda: NOW + timedelta(seconds=next(seconds))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "project", {"src/api/handlers.ts": "", "src/auth/": "", "README.md": ""})


@pytest.fixture
def learnings(project: Path) -> LearningStore:
    return LearningStore(ProjectTree(project), ticking())


def listed(learnings: LearningStore, query: LearningQuery | None = None) -> tuple[Learning, ...]:
    return learnings.page(query or LearningQuery(), PageRequest(1000)).items


def test_a_learning_is_a_file_that_is_found_again(project: Path, learnings: LearningStore) -> None:
    filed = learnings.file(new(evidence="A trace", operation="Adding a handler"))
    assert (project / filed.file).read_text().startswith("# PITFALL: A title\n")
    assert "**Directory**: src/api\n" in (project / filed.file).read_text()
    assert filed.file == f"{PENDING}/{filed.id}.md"
    assert LEARNING_ID.fullmatch(filed.id)
    assert filed.id.startswith("PITFALL-2026-02-06-")
    assert filed.id.endswith(f"-{os.getpid()}")
    assert len(filed.id.split("-")[4]) == 16
    assert learnings.get(filed.id) == filed == LearningStore(ProjectTree(project), ticking()).get(filed.id)
    assert [path.name for path in (project / PENDING).iterdir()] == [f"{filed.id}.md"]


def test_paths_are_located_and_counted_once(learnings: LearningStore) -> None:
    filed = learnings.file(new(paths=("./src//api/", "src/auth/../api", "src/auth")))
    assert filed.paths == ("src/api", "src/auth")
    assert learnings.get(filed.id).paths == ("src/api", "src/auth")


@pytest.mark.parametrize(
    ("folders", "common"),
    [
        (["src/api", "src/auth"], "src"),
        (["src/api", "src/api/v1"], "src/api"),
        (["src/api"], "src/api"),
        (["src/api", "src/apiary"], "src"),
        (["src", "tests"], "."),
        ([".", "src"], "."),
    ],
)
def test_the_directory_is_what_all_paths_have_in_common(folders: list[str], common: str) -> None:
    assert common_folder(folders) == common


@pytest.mark.parametrize(
    ("learning", "field"),
    [
        (new(" "), "title"),
        (new("a\nb"), "title"),
        (new("x" * 201), "title"),
        (new(detail="\n"), "detail"),
        (new(detail="x" * 20_001), "detail"),
        (new(detail="\ud800"), "detail"),
        (new(evidence="x" * 20_001), "evidence"),
        (new(operation="a\0"), "operation"),
        (new(agent_id=""), "agent_id"),
        (new(paths=()), "paths"),
        (new(path="../elsewhere"), "paths"),
        (new(path="/etc"), "paths"),
    ],
)
def test_what_cannot_be_filed_is_refused_and_leaves_nothing(
    project: Path, learnings: LearningStore, learning: NewLearning, field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        learnings.file(learning)
    assert refused.value.violations[0].field == field
    assert not (project / ".intent-layer").exists()


def test_an_identifier_that_is_taken_is_not_used_again(project: Path) -> None:
    words = iter(["a" * 16, "a" * 16, "a" * 16, "b" * 16])
    learnings = LearningStore(ProjectTree(project), lambda: NOW, lambda: next(words))
    first, second = learnings.file(new("first")), learnings.file(new("second"))
    assert [first.id[19:21], second.id[19:21]] == ["aa", "bb"]
    assert {each.title for each in listed(learnings)} == {"first", "second"}


def test_an_identifier_of_a_reviewed_learning_is_not_used_again(project: Path) -> None:
    words = iter(["a" * 16, "a" * 16, "b" * 16])
    learnings = LearningStore(ProjectTree(project), lambda: NOW, lambda: next(words))
    first = learnings.file(new("first"))
    (project / ".intent-layer/mistakes/integrated").mkdir()
    (project / first.file).rename(project / ".intent-layer/mistakes/integrated" / f"{first.id}.md")
    second = learnings.file(new("second"))
    assert second.id != first.id
    assert learnings.get(first.id).state is LearningState.INTEGRATED


def test_when_every_identifier_is_taken_nothing_is_overwritten(project: Path) -> None:
    learnings = LearningStore(ProjectTree(project), lambda: NOW, lambda: "a" * 16)
    first = learnings.file(new("first"))
    with pytest.raises(Unavailable):
        learnings.file(new("second"))
    assert listed(learnings) == (first,)


@pytest.mark.parametrize(
    "learning_id", ["", ".", "..", "a/b", "../../README", "a.md", "/etc/passwd", "a\0", "a\n", "-a", "é", "x" * 201]
)
def test_an_identifier_is_never_a_path(learnings: LearningStore, learning_id: str) -> None:
    with pytest.raises(InvalidArgument, match="id"):
        learnings.get(learning_id)


def test_what_was_never_filed_is_not_found(learnings: LearningStore) -> None:
    with pytest.raises(NotFound):
        learnings.get("PITFALL-2026-02-06-a1b2c3d4e5f60718-1")
    assert learnings.page(LearningQuery(), PageRequest()).items == ()


@pytest.mark.parametrize("linked", [".intent-layer", ".intent-layer/mistakes", PENDING])
def test_folders_that_lead_out_of_the_project_are_refused(
    project: Path, tmp_path: Path, learnings: LearningStore, linked: str
) -> None:
    outside = tmp_path / "outside"
    (outside / "mistakes/pending").mkdir(parents=True)
    (project / linked).parent.mkdir(parents=True, exist_ok=True)
    (project / linked).symlink_to(outside)
    for attempt in (
        lambda: learnings.file(new()),
        lambda: learnings.page(LearningQuery(), PageRequest()),
        lambda: learnings.get("PITFALL-2026-02-06-a1b2c3d4e5f60718-1"),
    ):
        with pytest.raises(InvalidArgument):
            attempt()
    assert [path for path in outside.rglob("*") if path.is_file()] == []


def test_folders_that_are_linked_within_the_project_are_used(project: Path, learnings: LearningStore) -> None:
    (project / "kept").mkdir()
    (project / ".intent-layer").symlink_to("kept")
    filed = learnings.file(new())
    assert (project / "kept/mistakes/pending" / f"{filed.id}.md").is_file()
    assert learnings.get(filed.id) == filed


def test_what_cannot_be_read_is_named_beside_the_rest(project: Path, learnings: LearningStore, tmp_path: Path) -> None:
    filed = learnings.file(new())
    folder = project / PENDING
    (folder / "README.md").write_text("Reports land here.")
    (folder / "a.b.md").write_text("**Type**: check\n\nText")
    (folder / "PITFALL-2026-02-06-1.md").mkdir()
    (folder / "PITFALL-2026-02-06-2.md").write_bytes(b"x" * 2_000_000)
    (tmp_path / "secret.md").write_text("**Type**: check\n**Timestamp**: 2026-01-01\n\nA secret")
    (folder / "PITFALL-2026-02-06-3.md").symlink_to(tmp_path / "secret.md")
    (folder / ".PITFALL-2026-02-06-4.tmp").write_text("half")
    (folder / ".hidden.md").write_text("half")
    (folder / "notes.txt").write_text("no report")
    page = learnings.page(LearningQuery(), PageRequest())
    assert page.items == (filed,)
    reasons = {Path(each.file).name: each.reason for each in page.unreadable}
    assert set(reasons) == {
        "README.md",
        "a.b.md",
        "PITFALL-2026-02-06-1.md",
        "PITFALL-2026-02-06-2.md",
        "PITFALL-2026-02-06-3.md",
    }
    assert reasons["README.md"] == "its type is not known"
    assert reasons["PITFALL-2026-02-06-2.md"] == "it is larger than 1048576 bytes"
    with pytest.raises(InvalidArgument, match=r"README\.md cannot be read"):
        learnings.get("README")


def test_a_report_that_was_rewritten_is_read_again(project: Path, learnings: LearningStore) -> None:
    filed = learnings.file(new("before"))
    assert listed(learnings)[0].title == "before"
    text = (project / filed.file).read_text()
    (project / filed.file).write_text(text.replace("before", "afterwards"))
    assert listed(learnings)[0].title == "afterwards"


def test_a_report_that_is_in_two_states_is_listed_once(project: Path, learnings: LearningStore) -> None:
    filed = learnings.file(new())
    (project / ".intent-layer/mistakes/integrated").mkdir()
    shutil.copy(project / filed.file, project / ".intent-layer/mistakes/integrated")
    assert listed(learnings) == (filed,)
    assert learnings.get(filed.id) == filed


def test_listings_are_filtered(project: Path, learnings: LearningStore) -> None:
    api = learnings.file(new("api"))
    auth = learnings.file(new("auth", path="src/auth", type=LearningType.CHECK))
    root = learnings.file(new("root", path=".", type=LearningType.INSIGHT))
    (project / ".intent-layer/mistakes/rejected").mkdir()
    (project / auth.file).rename(project / ".intent-layer/mistakes/rejected" / f"{auth.id}.md")

    def titles(**conditions: object) -> list[str]:
        return [each.title for each in listed(learnings, LearningQuery(**conditions))]  # type: ignore[arg-type]

    assert titles() == ["root", "auth", "api"]
    assert titles(states=frozenset({LearningState.PENDING})) == ["root", "api"]
    assert titles(types=frozenset({LearningType.CHECK, LearningType.PITFALL})) == ["auth", "api"]
    assert titles(path="src") == ["auth", "api"]
    assert titles(path="src/api/handlers.ts") == ["api"]
    assert titles(path="src/ap") == []
    assert titles(path=".") == ["root", "auth", "api"]
    assert (api.title, root.title) == ("api", "root")


def test_paths_of_other_tools_are_located(project: Path, learnings: LearningStore) -> None:
    (project / PENDING).mkdir(parents=True)
    for number, directory in enumerate(["./src/api/", f"{project}/src/api", "/elsewhere", "../up", str(project)]):
        (project / PENDING / f"PITFALL-2026-02-06-{number}.md").write_text(f"**Directory**: {directory}\n\nText")
    found = {each.id[-1]: each.paths for each in listed(learnings)}
    assert found == {
        "0": ("src/api",),
        "1": ("src/api",),
        "2": (".",),
        "3": (".",),
        "4": (".",),
    }


@pytest.mark.parametrize(
    ("about", "target", "bears"),
    [
        ("src/api/handlers.ts", "src/api/handlers.ts", True),
        ("src/api/handlers.ts", "src/api/other.ts", True),
        ("src/api/handlers.ts", "src/api", True),
        ("src/api", "src/api/v1/new.ts", True),
        ("src/api/v1/new.ts", "src/api/v1/new.ts", True),
        ("src/api/gone.ts", "src/api/handlers.ts", True),
        ("README.md", "src/api", True),
        (".", "src/api", True),
        ("src/gone", "src/auth", True),
        ("src/api", "src", True),
        ("src/api/handlers.ts", "src", True),
        ("src/auth", "src/api", False),
        ("src/auth/token.ts", "src/api/handlers.ts", False),
        ("src/auth/token.ts", "src/api/v1/new.ts", False),
    ],
)
def test_a_pending_learning_bears_on_what_lies_in_its_folder(
    learnings: LearningStore, about: str, target: str, bears: bool
) -> None:
    filed = learnings.file(new(path=about))
    assert learnings.pending_for_paths(target).learnings == ((filed,) if bears else ())


def test_what_bears_on_several_paths_is_listed_once_latest_first(learnings: LearningStore) -> None:
    filed = [learnings.file(new(path=path)) for path in ("src/api", "src/web/page.ts", "src/auth", "src")]
    assert learnings.pending_for_paths("src/api/users.ts", "src/auth", "src/api").learnings == (
        filed[3],
        filed[2],
        filed[0],
    )
    assert learnings.pending_for_paths().learnings == ()


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(0, 20))
def test_pages_hold_everything_once_latest_first(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], number: int
) -> None:
    project = write_tree(tmp_path_factory.mktemp("project"), {"src/": ""})
    instants = iter([NOW + timedelta(seconds=n // 3) for n in range(number)])
    learnings = LearningStore(ProjectTree(project), lambda: next(instants))
    filed = [learnings.file(new(path="src")) for _ in range(number)]
    found = walk(lambda request: learnings.page(LearningQuery(), request), sizes)
    assert found == sorted(filed, key=lambda each: (each.at, each.id), reverse=True)


def test_a_page_goes_on_where_the_last_one_ended_whatever_came_since(learnings: LearningStore) -> None:
    filed = [learnings.file(new(str(n))) for n in range(4)]
    first = learnings.page(LearningQuery(), PageRequest(2))
    learnings.file(new("later"))
    second = learnings.page(LearningQuery(), PageRequest(2, first.next_token))
    assert [*first.items, *second.items] == filed[::-1]
    assert second.next_token == ""


def test_a_token_holds_for_its_conditions_only(learnings: LearningStore) -> None:
    for n in range(3):
        learnings.file(new(str(n)))
    token = learnings.page(LearningQuery(), PageRequest(1)).next_token
    with pytest.raises(InvalidArgument, match="conditions"):
        learnings.page(LearningQuery(path="src"), PageRequest(1, token))
    with pytest.raises(InvalidArgument, match="page_token"):
        learnings.page(LearningQuery(), PageRequest(1, "nonsense"))


def test_the_longest_report_can_be_read_and_longer_ones_are_not_filed(project: Path, learnings: LearningStore) -> None:
    filed = learnings.file(new(detail="\x85" * 19_999 + ".", evidence="\x85" * 19_999 + "."))
    assert learnings.get(filed.id) == filed
    plain, hidden = (
        tuple("/".join([str(number), *[name] * 15]) for number in range(101)) for name in ("n" * 250, "\x85" * 125)
    )
    assert learnings.get(learnings.file(new(paths=plain)).id).paths == plain
    with pytest.raises(InvalidArgument) as raised:
        learnings.file(new(paths=hidden))
    assert [violation.field for violation in raised.value.violations] == ["paths"]
    assert len(list((project / PENDING).iterdir())) == 2


def test_a_page_of_large_learnings_holds_fewer(learnings: LearningStore) -> None:
    filed = [learnings.file(new(str(n), detail="x" * 20_000, evidence="y" * 20_000)) for n in range(40)]
    page = learnings.page(LearningQuery(), PageRequest(1000))
    assert 0 < len(page.items) < 40
    assert walk(lambda request: learnings.page(LearningQuery(), request), [1000]) == filed[::-1]


def test_a_folder_that_cannot_be_written_is_said_so(project: Path, learnings: LearningStore) -> None:
    (project / ".intent-layer").write_text("a file")
    with pytest.raises(Unavailable):
        learnings.file(new())


def test_a_report_that_is_killed_is_there_as_a_whole_or_not_at_all(project: Path, learnings: LearningStore) -> None:
    with started() as killer:
        steps = killer.report(project, "whole")
        assert steps
        assert synced_in_order(steps)
        for step in range(len(steps)):
            shutil.rmtree(project / ".intent-layer")
            assert killer.report(project, "killed", step) is None
            page = learnings.page(LearningQuery(), PageRequest(1000))
            assert page.unreadable == ()
            assert [each.title for each in page.items] in ([], ["killed"])
            assert learnings.file(new("next")) in listed(learnings)


def report_many(root: str, process: int, number: int, start: Callable[[], object]) -> None:
    learnings = LearningStore(ProjectTree(Path(root)), lambda: NOW)
    start()
    with ThreadPoolExecutor(5) as threads:
        titles = [f"{process}-{n}" for n in range(number)]
        list(threads.map(lambda title: learnings.file(new(title)), titles))


def complete_until(learnings: LearningStore, done: threading.Event) -> Iterator[int]:
    """Yield how many reports there are, time and again; fail when one of them is not complete."""
    while not done.is_set():
        page = learnings.page(LearningQuery(), PageRequest(1000))
        assert page.unreadable == ()
        yield len(page.items)


@pytest.mark.slow
def test_of_a_thousand_reports_at_once_none_is_lost(project: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(PROCESSES, timeout=60)
    processes = [
        context.Process(target=report_many, args=(str(project), n, REPORTS_EACH, barrier.wait))
        for n in range(PROCESSES)
    ]
    learnings = LearningStore(ProjectTree(project), lambda: NOW)
    done = threading.Event()
    with ThreadPoolExecutor(1) as reader:
        counts = reader.submit(lambda: list(complete_until(learnings, done)))
        for process in processes:
            process.start()
        for process in processes:
            process.join(100)
        done.set()
        assert counts.result(60) == sorted(counts.result())
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    found = walk(lambda request: learnings.page(LearningQuery(), request), [1000])
    expected = [f"{process}-{n}" for process in range(PROCESSES) for n in range(REPORTS_EACH)]
    assert Counter(each.title for each in found) == Counter(expected)
    assert len(list((project / PENDING).iterdir())) == PROCESSES * REPORTS_EACH


def test_paths_of_another_checkout_are_placed_by_their_longest_suffix_that_exists(tmp_path: Path) -> None:
    project = write_tree(
        tmp_path / "shop", {"src/api/handlers.ts": "", "api/x.ts": "", "secret/": "", "kept/name": "", "kept\\name": ""}
    )
    (project / "away").symlink_to("/etc")
    learnings = LearningStore(ProjectTree(project), ticking())
    reported = {
        "/home/ada/work/shop/src/api": (("src/api",), ()),
        "/home/ada/other/api/": (("api",), ()),
        "~/shop/src/api/handlers.ts": (("src/api/handlers.ts",), ()),
        "C:\\work\\shop\\src\\api": (("src/api",), ()),
        "src\\api\\handlers.ts": (("src/api/handlers.ts",), ()),
        ".\\src\\api": (("src/api",), ()),
        "src\\gone": (("src\\gone",), ()),
        "kept\\name": (("kept\\name",), ()),
        "..\\..\\etc": (("..\\..\\etc",), ()),
        "/home/ada/work/shop": ((".",), ()),
        "/home/ada/shop/src/gone": ((".",), ("/home/ada/shop/src/gone",)),
        "/etc": ((".",), ("/etc",)),
        "/srv/away/passwd": ((".",), ("/srv/away/passwd",)),
        "../../etc": ((".",), ("../../etc",)),
        "/a/../../src/api": (("src/api",), ()),
        f"/{'x/' * 3000}src": ((".",), (f"/{'x/' * 3000}src",)),
        f"{project}/src/new": (("src/new",), ()),
    }
    (project / PENDING).mkdir(parents=True)
    for number, directory in enumerate(reported):
        (project / PENDING / f"PITFALL-2026-02-06-{number}-1.md").write_text(f"**Directory**: {directory}\n\nText")
    found = {each.id.split("-")[4]: (each.paths, each.unplaced_paths) for each in listed(learnings)}
    assert [found[str(number)] for number in range(len(reported))] == list(reported.values())


def test_a_report_of_too_many_paths_cannot_be_read(project: Path, learnings: LearningStore) -> None:
    (project / PENDING).mkdir(parents=True)
    paths = "".join(f"- src/{number}\n" for number in range(200))
    (project / PENDING / "PITFALL-2026-02-06-1-1.md").write_text(f"**Paths**:\n{paths}\n### X\n\nText")
    (unreadable,) = learnings.pending_for_paths("src/auth").unreadable
    assert unreadable.reason == "it names more than 101 paths"
    assert unreadable.file == f"{PENDING}/PITFALL-2026-02-06-1-1.md"
