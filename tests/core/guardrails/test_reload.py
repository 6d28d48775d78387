"""Rulebooks whose files change while they are in force."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.core.guardrails.evaluator import ALLOW_UNKNOWN, GuardrailEvaluator
from cstp_grpc.core.guardrails.model import Action
from cstp_grpc.core.guardrails.reloading import UNFORESEEN, RulebookReloader, RuleLoader
from cstp_grpc.core.guardrails.rulebook import read_rulebooks
from cstp_grpc.core.guardrails.rules_in_force import LoadedRules, RulesInForce
from tests.core.guardrails.rulebooks import content, rule, write
from tests.example_counts import examples
from tests.waiting import wait_until

NOW = datetime(2026, 2, 4, tzinfo=UTC)


def book(identifier: str, when: str = "true", name: str = "book") -> str:
    """Return a rulebook with one rule."""
    return content([rule(identifier, when)], name=name)


@contextmanager
def following(path: Path) -> Iterator[tuple[RulesInForce, RulebookReloader]]:
    """Load the rules at a path, and follow their changes for the length of a block."""
    loader = RuleLoader(path, ALLOW_UNKNOWN, frozenset(), lambda: NOW)
    rules = RulesInForce(loader.load(*read_rulebooks(path)))
    reloader = RulebookReloader(loader, rules)
    reloader.start()
    try:
        yield rules, reloader
    finally:
        reloader.stop()


def ids(rules: RulesInForce) -> list[str]:
    verdict = rules.current.evaluator.evaluate(Action("do it"))
    found = [violation.guardrail_id for violation in verdict.violations]
    assert found == [guardrail.id for guardrail in rules.current.rule_set.guardrails]
    return found


def wait_for_rules(rules: RulesInForce, *expected: str) -> None:
    wait_until(lambda: ids(rules) == list(expected), f"{expected} are in force")
    assert rules.is_up_to_date()


def wait_for_failure(rules: RulesInForce) -> list[str]:
    wait_until(lambda: not rules.is_up_to_date(), "the load has failed")
    failure = rules.state.failure
    assert failure is not None
    assert failure.failed_at == NOW
    return list(map(str, failure.problems))


def test_a_changed_file_is_in_force_soon(tmp_path: Path) -> None:
    path = write(tmp_path / "rules.yaml", book("one"))
    with following(path) as (rules, _):
        before = rules.current.listing.version
        write(path, book("two"))
        wait_for_rules(rules, "two")
        assert rules.current.listing.version != before
        # As editors do it: a new file in the place of the old one.
        write(tmp_path / "rules.yaml~", book("three")).replace(path)
        wait_for_rules(rules, "three")


def test_a_bad_edit_changes_nothing_and_says_what_is_wrong(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "rules.yaml", book("one"))
    with following(path) as (rules, _):
        good = rules.current
        write(path, book("one", "context.x").replace("block", "blok"))
        assert wait_for_failure(rules) == [
            "rules.yaml:13: one: `when` context.x is not declared in inputs",
            "rules.yaml:14: one: `severity` must be one of block, warn, approve, not blok",
        ]
        assert rules.current is good
        assert f"{good.listing.version} stays in force:\n{path}:" in caplog.text

        write(path, book("one"))
        wait_until(rules.is_up_to_date, "the file is as it was")
        assert rules.current is good


def test_a_deleted_file_changes_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "rules.yaml", book("one"))
    with following(path) as (rules, _):
        path.unlink()
        assert wait_for_failure(rules) == ["rules.yaml:1: rulebook: cannot be read: No such file or directory"]
        assert ids(rules) == ["one"]
        write(path, book("two"))
        wait_for_rules(rules, "two")


def test_files_are_added_to_a_folder_and_removed_from_it(tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    write(folder / "b.yaml", book("one"))
    with following(folder) as (rules, _):
        write(folder / "a.yml", book("zero", name="other"))
        wait_for_rules(rules, "zero", "one")
        write(folder / ".hidden.yaml", "nonsense")
        (folder / "b.yaml").unlink()
        wait_for_rules(rules, "zero")

        write(folder / "c.yaml", book("zero", name="third"))
        assert wait_for_failure(rules) == ["c.yaml:10: zero: the id is used already, in a.yml:10"]
        (folder / "c.yaml").unlink()
        wait_until(rules.is_up_to_date, "the folder is as it was")

        (folder / "a.yml").rename(tmp_path / "a.yml")
        assert wait_for_failure(rules) == ["rules:1: rulebook: the folder contains no *.yaml or *.yml"]
        (tmp_path / "a.yml").rename(folder / "a.yml")
        wait_until(rules.is_up_to_date, "the folder is as it was")

        shutil.rmtree(folder)
        wait_for_failure(rules)
        assert ids(rules) == ["zero"]
        folder.mkdir()
        write(folder / "a.yml", book("last"))
        wait_for_rules(rules, "last")


def test_links_are_followed_as_they_are_swapped(tmp_path: Path) -> None:
    for version in ("one", "two"):
        (tmp_path / f"..{version}").mkdir()
        # Of the same size and time, so that only what the link leads to tells them apart.
        os.utime(write(tmp_path / f"..{version}" / "rules.yaml", book(version)), (1, 1))
    (tmp_path / "..data").symlink_to("..one")
    (tmp_path / "rules.yaml").symlink_to("..data/rules.yaml")
    with following(tmp_path) as (rules, _):
        assert ids(rules) == ["one"]
        (tmp_path / "..new").symlink_to("..two")
        (tmp_path / "..new").replace(tmp_path / "..data")
        wait_for_rules(rules, "two")


def test_extended_files_count_wherever_they_are(tmp_path: Path) -> None:
    extending = content([rule("own", "true")], name="own").replace("{", '{"extends": ["base/common.yaml"],', 1)
    (tmp_path / "base").mkdir()
    base = write(tmp_path / "base" / "common.yaml", book("common"))
    path = write(tmp_path / "rules.yaml", extending)
    with following(path) as (rules, _):
        assert ids(rules) == ["common", "own"]
        write(base, book("shared"))
        wait_for_rules(rules, "shared", "own")

        base.unlink()
        [problem] = wait_for_failure(rules)
        assert "common.yaml does not exist" in problem
        # One that is not there yet is waited for.
        write(base, book("again"))
        wait_for_rules(rules, "again", "own")


def test_whoever_asks_has_the_files_read_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    path = write(tmp_path / "rules.yaml", book("one"))
    with following(path) as (rules, reloader):
        reloader.request_reload()
        wait_until(lambda: "the rulebooks are those in force, book@1+" in caplog.text, "it is said")
        assert ids(rules) == ["one"]


def test_rules_that_have_expired_are_named_when_they_are_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "rules.yaml", book("one"))
    with following(path) as (rules, _):
        write(path, content([rule("old", "true", expires="2026-01-01"), rule("new", "true")]))
        wait_until(lambda: len(rules.current.rule_set.guardrails) == 2, "both are loaded")
        assert "the guardrail old expired at 2026-01-02" in caplog.text


NAMES = ("a.yaml", "b.yaml", "c.yml")
edits = st.tuples(st.sampled_from(NAMES), st.sampled_from(["one", "two", "broken", "removed"]))


@settings(deadline=None, max_examples=examples(50))
@given(st.lists(edits, min_size=1, max_size=8))
def test_after_any_edits_the_last_valid_set_is_in_force(steps: Sequence[tuple[str, str]]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        contents = {"a.yaml": "one"}
        write(folder / "a.yaml", book("a.yaml-one", name="a"))
        with following(folder) as (rules, reloader):
            expected = ["a.yaml-one"]
            for file, content in steps:
                contents[file] = content
                apply_edit(folder / file, content)
                before = rules.state
                reloader.request_reload()
                wait_until(lambda: rules.state is not before, "the files were read")  # noqa: B023
                there = {file: content for file, content in sorted(contents.items()) if content != "removed"}
                is_valid = bool(there) and "broken" not in there.values()
                if is_valid:
                    expected = [f"{file}-{content}" for file, content in there.items()]
                assert ids(rules) == expected
                assert rules.is_up_to_date() == is_valid


def apply_edit(path: Path, content: str) -> None:
    """Write a rulebook with a rule named by its file and content, an invalid one, or none."""
    if content == "removed":
        path.unlink(missing_ok=True)
    elif content == "broken":
        write(path, "nonsense")
    else:
        write(path, book(f"{path.name}-{content}", name=path.stem))


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_pipe_in_the_place_of_a_rulebook_holds_nothing_up(tmp_path: Path, in_folder: bool) -> None:
    path = write(tmp_path / "rules.yaml", book("one"))
    with following(tmp_path if in_folder else path) as (rules, _):
        path.unlink()
        os.mkfifo(path)
        assert wait_for_failure(rules) == ["rules.yaml:1: rulebook: cannot be read: Not a regular file"]
        assert ids(rules) == ["one"]
        path.unlink()
        write(path, book("two"))
        wait_for_rules(rules, "two")


def test_a_version_is_named_once_everything_judges_by_it(tmp_path: Path) -> None:
    path = write(tmp_path / "rules.yaml", book("one"))
    with following(path) as (rules, _):
        named: list[list[str]] = []
        rules.follow(lambda _: named.append(ids(rules)))
        write(path, book("two"))
        wait_for_rules(rules, "two")
        assert named == [["one"]]


def test_an_unexpected_error_keeps_the_rules_and_is_not_hidden(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path / "rules.yaml", book("one"))
    broken = [OSError("the disk is full of secrets")]

    def follow(_: LoadedRules) -> None:
        if broken:
            raise broken.pop()

    with following(path) as (rules, reloader):
        rules.follow(follow)
        write(path, book("two"))
        assert wait_for_failure(rules) == [f"rules.yaml:1: rulebook: {UNFORESEEN}"]
        assert ids(rules) == ["one"]
        wait_until(lambda: "full of secrets" in caplog.text, "the reason is logged")
        reloader.request_reload()
        wait_for_rules(rules, "two")


def test_rules_whose_plans_cannot_be_made_ahead_are_still_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = [RuntimeError("unforeseen")]

    def fail_once(_: GuardrailEvaluator) -> None:
        if failures:
            raise failures.pop()

    monkeypatch.setattr(GuardrailEvaluator, "warm_up", fail_once)
    path = write(tmp_path / "rules.yaml", book("one"))
    with following(path) as (rules, _):
        wait_until(lambda: "unforeseen" in caplog.text, "the reason is logged")
        write(path, book("two"))
        wait_for_rules(rules, "two")
