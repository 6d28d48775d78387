"""Sections item by item."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.modules.intent_layer.code_context_reader import (
    BoundaryPermission,
    boundary_items,
    check_items,
    pitfall_titles,
)
from tests.named_case import named_case

ALWAYS, ASK_FIRST, NEVER = BoundaryPermission.ALWAYS, BoundaryPermission.ASK_FIRST, BoundaryPermission.NEVER


def test_open_items_are_checks() -> None:
    for text, items in [
        ("- [ ] Run `make test`", ["Run `make test`"]),
        ("* [ ] One\n+ [ ] Two\n1. [ ] Three", ["One", "Two", "Three"]),
        ("- [x] Done\n- [X] Done too\n- plain\n- [ ]\n- []\n- [ ]no room", []),
        ("- [ ] It goes on\n  in the next line\n\n  Detail of it", ["It goes on in the next line"]),
        ("Before a release:\n\n- [ ] Outer\n  - [ ] Inner", ["Outer", "Inner"]),
        ("### Deploying\n\n- [ ] Under a heading", ["Under a heading"]),
        ("```\n- [ ] Code\n```\n\n    - [ ] Code too\n\n<!--\n- [ ] Comment\n-->", []),
        ("- [ ] Look <!-- from CHECK-1 -->\n- [ ] Ask _Source: CHECK-2026-02-06-a1-7_", ["Look", "Ask"]),
        ("- [ ] Read [the guide](docs/guide.md) **first**", ["Read [the guide](docs/guide.md) **first**"]),
        ("- [ ] " + "<!--" * 10_000, [("<!--" * 10_000)]),
        ("", []),
    ]:
        with named_case(text, items):
            assert check_items(text) == items


def test_what_stands_below_a_check_is_its_detail() -> None:
    merged = "- [ ] Run the contract tests\n\n  With care:\n\n  - slowly\n\n  _Source: CHECK-2026-02-06-a1-7_\n"

    assert check_items(merged) == ["Run the contract tests"]


def test_boundaries_are_told_by_what_they_permit() -> None:
    for text, items in [
        (
            "### Always\n- a\n### Ask First\n- b\n- c\n### Never\n- d",
            {ALWAYS: ["a"], ASK_FIRST: ["b", "c"], NEVER: ["d"]},
        ),
        ("**Never:**\n\n- a\n\n**ask-first**\n\n1. b", {NEVER: ["a"], ASK_FIRST: ["b"]}),
        ("- **Never**\n  - a\n  - b\n- c\n- Always:\n  - d", {NEVER: ["a", "b"], ALWAYS: ["d"]}),
        (
            "- Never: a\n- **Always** b\n- __Ask first:__ c\n- **Never** \N{EM DASH} d",
            {NEVER: ["a", "d"], ALWAYS: ["b"], ASK_FIRST: ["c"]},
        ),
        ("### Never (blocked by review)\n- a", {NEVER: ["a"]}),
        ("### \N{NO ENTRY} Never\n- a", {NEVER: ["a"]}),
        ("### Never\n\nWithout exception:\n\n- a\n  goes on\n  - detail\n\n  More detail", {NEVER: ["a goes on"]}),
        ("### Never\n- Ask first: a\n- b", {ASK_FIRST: ["a"], NEVER: ["b"]}),
        ("### Never\n- a\n### Elsewhere\n- b", {NEVER: ["a"]}),
        ("- Never mind\n- Always is a word\n- a", {}),
        ("### Never\n```\n- a\n```", {}),
        ("", {}),
    ]:
        with named_case(text, items):
            assert {key: found for key, found in boundary_items(text).items() if found} == items


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        (
            "- Amounts are in cents\n  and never in euros\n\n  Detail\n- The clock",
            ["Amounts are in cents and never in euros", "The clock"],
        ),
        (
            "### Arrow functions ###\n\nDetail\n\n- more detail\n\n### The clock\n\nDetail",
            ["Arrow functions", "The clock"],
        ),
        ("- Old one\n\n### New one\n\n- detail\n\n_Source: PITFALL-2026-02-06-a1-7_", ["Old one", "New one"]),
        ("First line\nsecond line\n\nAnother", ["First line", "Another"]),
        ("```\n- code\n```", []),
        ("-\n-   \n\n###\n", []),
        ("", []),
    ],
)
def test_pitfalls_have_titles(text: str, titles: list[str]) -> None:
    assert pitfall_titles(text) == titles


LINES = st.sampled_from(
    [
        "",
        "text",
        "- [ ] check",
        "  - [ ] inner",
        "- Never: x",
        "### Never",
        "**Always**",
        "- a",
        "```",
        "> - [ ] q",
        "    code",
    ]
) | st.text(max_size=12)


@given(st.lists(LINES, max_size=12).map("\n".join))
def test_every_item_is_one_line_of_what_is_written(text: str) -> None:
    items = [
        *check_items(text),
        *pitfall_titles(text),
        *(item for found in boundary_items(text).values() for item in found),
    ]

    words = text.split()
    for item in items:
        assert item == " ".join(item.split())
        assert item
        assert all(any(word in written for written in words) for word in item.split())
