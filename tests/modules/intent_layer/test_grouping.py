"""Learnings that likely say the same come together, and no others."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cstp_grpc.modules.intent_layer.duplicate_search import group_duplicates, word_overlap
from cstp_grpc.modules.intent_layer.model import Learning, LearningState, LearningType
from cstp_grpc.modules.intent_layer.project_tree import ProjectTree
from tests.example_counts import examples
from tests.modules.intent_layer.trees import write_tree

WORDS = ["alpha", "beta", "gamma", "delta", "the", "epsilon", "zeta"]
texts = st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join)


def learning(number: int, title: str, detail: str, path: str = "src/x.ts") -> Learning:
    return Learning(
        id=f"PITFALL-{number}",
        type=LearningType.PITFALL,
        state=LearningState.PENDING,
        at=datetime(2026, 2, 6, tzinfo=UTC),
        paths=(path,),
        title=title,
        detail=detail,
        agent_id="worker-3",
        file=f".intent-layer/mistakes/pending/PITFALL-{number}.md",
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> ProjectTree:
    files = {"AGENTS.md": "", "src/x.ts": "", "lib/AGENTS.md": "", "lib/y.ts": ""}
    return ProjectTree(write_tree(tmp_path_factory.mktemp("shop"), files))


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(texts, texts, st.sampled_from(["src/x.ts", "lib/y.ts"])), max_size=8),
    st.sampled_from([0.3, 0.5, 0.6, 0.8, 1.0]),
)
def test_each_is_with_the_first_that_is_alike(
    tree: ProjectTree, drawn: list[tuple[str, str, str]], threshold: float
) -> None:
    learnings = [learning(number, *each) for number, each in enumerate(drawn)]
    expected: list[list[Learning]] = []
    for each in learnings:
        whole = f"{each.title}\n{each.detail}"
        for group in expected:
            first = group[0]
            words = max(word_overlap(f"{first.title}\n{first.detail}", whole), word_overlap(first.title, each.title))
            if first.paths == each.paths and words >= threshold:
                group.append(each)
                break
        else:
            expected.append([each])
    assert group_duplicates(tree, learnings, threshold) == tuple(map(tuple, expected))


def test_one_that_leads_nowhere_is_alone(tree: ProjectTree, tmp_path: Path) -> None:
    (tmp_path / "away").symlink_to("/etc")
    outside = ProjectTree(tmp_path)
    learnings = [learning(number, "Same", "Same", "away/x") for number in range(2)]
    assert group_duplicates(outside, learnings) == tuple((each,) for each in learnings)
