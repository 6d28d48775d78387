"""Changes of rulebooks, as `cstp guardrails test --watch` sees them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cstp_grpc.cli.rulebook_authoring import LOOK_SECONDS, wait_for_changes
from tests.core.guardrails.rulebooks import content, rule, write

EXTENDING = """\
apiVersion: cstp.guardrails/v1
metadata: {name: ours, version: "1"}
extends: [sub/base.yaml]
guardrails: []
"""


def names(files: object) -> list[str]:
    assert isinstance(files, list)
    return [file.path.name for file in files]


def test_each_change_is_seen_once_whatever_file_it_is_in(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    base = write(tmp_path / "sub" / "base.yaml", content([rule("a", "true")], name="base"))
    ours = write(tmp_path / "ours.yaml", EXTENDING)
    changes = wait_for_changes(tmp_path)
    assert names(next(changes)) == ["ours.yaml", "base.yaml"]
    # Of the same length, within the resolution of any clock of files.
    write(base, content([rule("b", "true")], name="base"))
    assert b'"id": "b"' in next(changes)[1].content
    write(tmp_path / "more.yaml", content([rule("more", "true")], name="more"))
    assert names(next(changes)) == ["more.yaml", "ours.yaml", "base.yaml"]
    ours.unlink()
    assert names(next(changes)) == ["more.yaml"]


def test_rulebooks_that_are_away_for_a_moment_are_none(tmp_path: Path) -> None:
    book = write(tmp_path / "book.yaml", content([rule("a", "true")]))
    changes = wait_for_changes(book)
    assert names(next(changes)) == ["book.yaml"]
    book.unlink()
    assert names(next(changes)) == []
    folder = tmp_path / "folder"
    folder.mkdir()
    changes = wait_for_changes(folder)
    assert names(next(changes)) == []


def test_a_change_ends_the_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = write(tmp_path / "book.yaml", content([rule("a", "true")]))
    changes = wait_for_changes(book)
    next(changes)
    waits: list[float] = []

    def change_meanwhile(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            write(book, content([rule("b", "true")]))

    monkeypatch.setattr(time, "sleep", change_meanwhile)
    assert b'"id": "b"' in next(changes)[0].content
    assert waits == [LOOK_SECONDS] * 3
