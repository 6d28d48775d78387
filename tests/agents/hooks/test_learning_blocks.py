"""Learnings as agents state them in their last message."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.agents.hooks.hook_texts import FORM
from cstp_grpc.agents.hooks.learning_blocks import MAX_BLOCKS, TYPES, StatedLearning, read_learnings
from cstp_grpc.modules.intent_layer.model import LearningType
from tests.agents.hooks.payloads import LEARNED

GUIDE = Path(__file__).parents[3] / "docs" / "hooks.md"
words = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="`"), min_size=1)


def test_a_block_is_read_whole() -> None:
    assert list(read_learnings(LEARNED)) == [
        StatedLearning(
            "pitfall",
            "src/money.py",
            "Rates are percentages",
            "TAX is in percent.\nDivide by 100 before you multiply.",
        )
    ]


@pytest.mark.parametrize("text", [FORM, GUIDE.read_text()], ids=["form", "guide"])
def test_the_form_that_is_told_is_one(text: str) -> None:
    (learning,) = read_learnings(text)
    assert learning.problem == ""
    assert learning.type in TYPES


def test_the_types_are_those_of_the_contract() -> None:
    assert set(TYPES) == {each.value for each in LearningType}


@given(st.sampled_from(TYPES), words, words, words, st.sampled_from(["\n", "\r\n"]))
def test_what_is_stated_is_read(type_: str, path: str, title: str, detail: str, newline: str) -> None:
    lines = ["Done.", "```cstp-learning", f"type: {type_}", f"path: {path}", f"title: {title}"]
    text = newline.join([*lines, f"detail: {detail}", "title: still the detail", "```", ""])
    assert list(read_learnings(text)) == [StatedLearning(type_, path, title, f"{detail}\ntitle: still the detail")]


@given(st.text(st.sampled_from("`\n cstp-learning:typedail")))
def test_any_message_is_read(text: str) -> None:
    for learning in read_learnings(f"```cstp-learning\n{text}"):
        assert learning.problem or (learning.path and learning.title and learning.detail)


def test_too_many_learnings_are_refused_but_for_the_first() -> None:
    found = list(read_learnings(LEARNED * 20))
    assert [bool(each.problem) for each in found] == [False] * MAX_BLOCKS + [True]


@pytest.mark.parametrize("text", ["", "```\ntype: pitfall\n```", "```cstp-learning\ntype: pitfall"])
def test_other_messages_state_none(text: str) -> None:
    assert list(read_learnings(text)) == []
