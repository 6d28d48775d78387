"""Numbers with their nouns."""

from __future__ import annotations

from cstp_grpc.common.counted_nouns import count_audit_contents, count_noun, count_nouns


def test_a_noun_is_in_the_singular_for_one_alone() -> None:
    """Zero takes the plural, too."""
    assert [count_noun(count, "decision") for count in (0, 1, 2)] == ["0 decisions", "1 decision", "2 decisions"]
    assert [count_noun(count, "entry", "entries") for count in (1, 2)] == ["1 entry", "2 entries"]


def test_several_nouns_are_a_list() -> None:
    """Each is in the number of its own count."""
    assert count_nouns((1, "session"), (0, "message")) == "1 session, 0 messages"
    assert count_audit_contents(1) == "the contents of 1 audit entry"
