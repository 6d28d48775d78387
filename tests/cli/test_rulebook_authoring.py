"""guardrails new, validate, test and diff."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.cli.conftest import Invoke
from tests.core.guardrails.rulebooks import content, rule, write

INPUTS = {"risky": {"type": "bool", "default": False}}
RULES = [rule("nothing-risky", "context.risky", message="Too risky")]
BOUND = 60.0
"""Seconds after which a watch that prints nothing more is ended, and its test fails."""


def case(name: str, *, risky: bool, expect: list[str]) -> dict[str, object]:
    return {"name": name, "action": {"description": "do it", "context": {"risky": risky}}, "expect": expect}


RISKY = case("risky", risky=True, expect=["nothing-risky"])
HARMLESS = case("harmless", risky=False, expect=[])


@pytest.fixture
def rulebook(home: Path) -> Path:
    return write(home / "mine.yaml", content(RULES, INPUTS, [RISKY, HARMLESS], name="mine"))


def line_of(path: Path, key: str, name: str) -> int:
    """Return the line on which the item begins whose first key has this text, which is on the next line."""
    return next(number for number, line in enumerate(path.read_text().splitlines()) if f'"{key}": "{name}' in line)


def test_a_new_rulebook_passes_its_own_tests_and_covers_its_rules(home: Path, invoke: Invoke) -> None:
    written = invoke("guardrails", "new")
    assert written.exit_code == 0
    file = home / "guardrails" / "rules.yaml"
    assert "cstp guardrails test guardrails/rules.yaml" in written.stdout
    assert "#" in file.read_text()
    tested = invoke("guardrails", "test", file, "--require-coverage")
    assert tested.exit_code == 0
    assert tested.stdout == "7 of 7 tests passed.\n"
    assert invoke("guardrails", "new", "-").stdout == file.read_text()
    # The configured rules are those in the folder, once a configuration names it.
    write(home / "cstp.yaml", "cstp: {guardrails: {config_path: guardrails}}\n")
    assert "rules.yaml: 3 guardrails" in invoke("guardrails", "validate", "--config", "cstp.yaml").stdout


def test_a_new_rulebook_overwrites_nothing(home: Path, invoke: Invoke) -> None:
    file = write(home / "rules.yaml", "mine")
    refused = invoke("guardrails", "new", file, "--json")
    assert refused.exit_code == 1
    assert "exists already" in json.loads(refused.stderr)["error"]["message"]
    assert file.read_text() == "mine"
    assert invoke("guardrails", "new", home / "rules.yaml" / "below.yaml").exit_code == 1


def test_a_valid_rulebook_is_said_to_be_valid(rulebook: Path, invoke: Invoke) -> None:
    result = invoke("guardrails", "validate", rulebook)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{rulebook}: 1 guardrail, 1 input, 2 tests\nValid, version mine@1+")
    answer = json.loads(invoke("guardrails", "validate", rulebook, "--json").stdout)
    version = answer.pop("version")
    assert version.startswith("mine@1+")
    assert answer == {"valid": True, "guardrails": 1, "inputs": 1, "tests": 2, "problems": []}


@pytest.mark.parametrize("command", ["validate", "test"])
def test_a_rulebook_that_cannot_be_used_is_told_line_by_line(command: str, rulebook: Path, invoke: Invoke) -> None:
    write(rulebook, content([rule("r", "context.risky && context.rsky"), rule("s", "true", "blok")], INPUTS))
    result = invoke("guardrails", command, rulebook)
    assert result.exit_code == 3
    lines = [line_of(rulebook, "id", name) for name in "rs"]
    assert f"{rulebook}:{lines[0] + 3}: r: `when` context.rsky is not declared in inputs" in result.stderr
    assert f"{rulebook}:{lines[1] + 4}: s: `severity` must be one of block, warn, approve, not blok" in result.stderr
    answer = json.loads(invoke("guardrails", command, rulebook, "--json").stdout)
    assert answer["valid"] is False
    assert [problem["where"] for problem in answer["problems"]] == ["r", "s"]


@pytest.mark.parametrize("command", ["validate", "test"])
def test_a_path_without_rulebooks_is_wrong(command: str, home: Path, invoke: Invoke) -> None:
    (home / "empty").mkdir()
    assert invoke("guardrails", command, home / "empty").exit_code == 3
    assert invoke("guardrails", command, home / "none").exit_code == 2


def test_tests_that_pass_are_counted(rulebook: Path, invoke: Invoke) -> None:
    result = invoke("guardrails", "test", rulebook)
    assert result.exit_code == 0
    assert result.stdout == "2 of 2 tests passed.\n"


def test_tests_that_fail_are_told_and_fail_the_command(rulebook: Path, invoke: Invoke) -> None:
    wrong = case("risky", risky=True, expect=[])
    write(rulebook, content(RULES, INPUTS, [wrong, HARMLESS], name="mine"))
    result = invoke("guardrails", "test", rulebook)
    assert result.exit_code == 4
    place = line_of(rulebook, "name", "risky")
    assert result.stdout == (
        f"{rulebook}:{place}: mine: risky\n  nothing-risky fired: Too risky\n1 of 2 tests passed.\n"
    )
    report = json.loads(invoke("guardrails", "test", rulebook, "--json").stdout)
    assert (report["passed"], report["failed"]) == (1, 1)
    assert report["tests"][0]["failures"] == ["nothing-risky fired: Too risky"]


def test_guardrails_that_tests_leave_untried_are_named(rulebook: Path, invoke: Invoke) -> None:
    rules = [
        *RULES,
        rule("always", "true", "warn"),
        rule("never", "false"),
        rule("off", "true", enforcement="disabled"),
    ]
    expecting = [case("risky", risky=True, expect=["nothing-risky", "always"])]
    write(rulebook, content(rules, INPUTS, expecting))
    result = invoke("guardrails", "test", rulebook)
    assert result.exit_code == 0
    places = [line_of(rulebook, "id", name) for name in ("nothing-risky", "always", "never")]
    assert result.stdout.splitlines() == [
        "1 of 1 test passed.",
        f"{rulebook}:{places[0]}: nothing-risky: no test passes it",
        f"{rulebook}:{places[1]}: always: no test passes it",
        f"{rulebook}:{places[2]}: never: no test fires it",
    ]
    demanded = invoke("guardrails", "test", rulebook, "--require-coverage", "--json")
    assert demanded.exit_code == 4
    covered = {each["id"]: (each["fired"], each["passed"]) for each in json.loads(demanded.stdout)["coverage"]}
    assert covered == {"nothing-risky": (True, False), "always": (True, False), "never": (False, True)}


def test_a_rule_that_no_test_can_evaluate_is_untried(rulebook: Path, invoke: Invoke) -> None:
    test = {"name": "t", "action": {"description": "do it"}, "expect": [], "expect_errors": ["r"]}
    write(rulebook, content([rule("r", "context.x")], {"x": {"type": "bool"}}, [test]))
    assert "r: no test fires it and no test passes it" in invoke("guardrails", "test", rulebook).stdout


def test_a_rulebook_without_tests_is_untried(rulebook: Path, invoke: Invoke) -> None:
    write(rulebook, content(RULES, INPUTS))
    result = invoke("guardrails", "test", rulebook)
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "0 of 0 tests passed.")
    assert invoke("guardrails", "test", rulebook, "--require-coverage").exit_code == 4


def junit_cases(file: Path) -> dict[str, list[tuple[str, str]]]:
    """Return the cases of a report: the texts of what failed in each, by kind."""
    root = ElementTree.parse(file).getroot()
    return {
        f"{suite.get('name')}/{found.get('name')}": [(each.tag, each.text or "") for each in found]
        for suite in root
        for found in suite
    }


def test_a_junit_report_has_a_case_for_each_test(rulebook: Path, home: Path, invoke: Invoke) -> None:
    report = home / "report.xml"
    wrong = {**RISKY, "name": "a <wrong> \0test", "expect": []}
    write(rulebook, content([*RULES, rule("never", "false")], INPUTS, [wrong, HARMLESS], name="mine"))
    assert invoke("guardrails", "test", rulebook, "--junit", report).exit_code == 4
    assert junit_cases(report) == {
        "mine/a <wrong> \N{REPLACEMENT CHARACTER}test": [("failure", "nothing-risky fired: Too risky")],
        "mine/harmless": [],
    }
    root = ElementTree.parse(report).getroot()
    assert (root.get("tests"), root.get("failures"), root.get("errors")) == ("2", "1", "0")
    assert root[0][0].get("file") == str(rulebook)
    assert root[0][0].get("line") == str(line_of(rulebook, "name", "a <wrong>"))
    invoke("guardrails", "test", rulebook, "--junit", report, "--require-coverage")
    assert junit_cases(report)["coverage/never"] == [("failure", "no test fires it")]
    assert junit_cases(report)["coverage/nothing-risky"] == []


def test_a_junit_report_has_the_problems_of_a_rulebook_that_cannot_be_used(
    rulebook: Path, home: Path, invoke: Invoke
) -> None:
    report = home / "report.xml"
    write(rulebook, content([rule("r", "1")]))
    assert invoke("guardrails", "test", rulebook, "--junit", report).exit_code == 3
    assert junit_cases(report) == {"rulebooks/r": [("error", "`when` must be a bool, but is int")]}
    assert invoke("guardrails", "test", rulebook, "--junit", home / "none" / "report.xml").exit_code == 1
    assert {path.name for path in home.iterdir()} == {"mine.yaml", "report.xml"}


class Watch:
    """A running `cstp guardrails test --watch`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def read_until(self, text: str) -> str:
        """Return the printed lines up to and with the one that holds a text."""
        assert self._process.stdout
        printed = ""
        for line in self._process.stdout:
            printed += line
            if text in line:
                return printed
        raise AssertionError(f"the watch ended before it printed {text!r}:\n{printed}")

    def interrupt(self) -> int:
        """Send what Ctrl-C sends, and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(BOUND)


@contextmanager
def watching(path: Path) -> Iterator[Watch]:
    """Yield a watch of the tests at a path, which is ended after the block or after BOUND seconds."""
    program = "from cstp_grpc.cli.main import main; main(prog_name='cstp')"
    process = subprocess.Popen(
        [sys.executable, "-c", program, "guardrails", "test", str(path), "--watch"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    timer = threading.Timer(BOUND, process.kill)
    timer.start()
    try:
        with process:
            yield Watch(process)
            process.kill()
    finally:
        timer.cancel()


def test_tests_are_run_again_when_a_rulebook_changes_until_ctrl_c(home: Path, rulebook: Path) -> None:
    folder = home / "rules"
    folder.mkdir()
    mine = rulebook.rename(folder / "mine.yaml")
    with watching(folder) as watch:
        assert "2 of 2 tests passed." in watch.read_until("Waiting for a change")
        write(mine, content(RULES, INPUTS, [case("risky", risky=True, expect=[])], name="mine"))
        assert "nothing-risky fired" in watch.read_until("0 of 1 test passed.")
        write(mine, "guardrails: [")
        assert "is not YAML" in watch.read_until("problem")
        # As editors save: another file takes the place of the first.
        replacement = write(folder / "mine.yaml~", content(RULES, INPUTS, [RISKY], name="mine"))
        replacement.replace(mine)
        watch.read_until("1 of 1 test passed.")
        write(folder / "more.yaml", content([rule("more", "true")], name="more"))
        watch.read_until("more: no test fires it and no test passes it")
        mine.unlink()
        watch.read_until("0 of 0 tests passed.")
        assert watch.interrupt() == 0


def test_a_watch_prints_no_json(rulebook: Path, invoke: Invoke) -> None:
    assert invoke("guardrails", "test", rulebook, "--watch", "--json").exit_code == 2


def test_differences_are_told_in_words(rulebook: Path, home: Path, invoke: Invoke) -> None:
    inputs = {"risky": {"type": "bool", "default": True}, "rows": {"type": "number"}}
    rules = [
        rule("nothing-risky", "context.risky", "warn", message="Too risky", owner="ops", match={"stakes": "high"}),
        rule("few-rows", "context.rows > 5", enforcement="dryrun"),
    ]
    new = write(home / "new.yaml", content(rules, inputs, name="mine"))
    result = invoke("guardrails", "diff", rulebook, new)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[:-1] == [
        "guardrail few-rows was added: block, dryrun, few-rows",
        "guardrail nothing-risky was changed",
        "  severity is warn",
        "           was block",
        "  owner is ops",
        "        was tests",
        '  match is new: {"stakes": ["high"]}',
        "input rows was added: number",
        "input risky was changed",
        "  default is true",
        "          was false",
    ]
    back = invoke("guardrails", "diff", new, rulebook).stdout
    assert "guardrail few-rows was removed: block, dryrun, few-rows" in back
    assert '  match is gone; it was {"stakes": ["high"]}' in back
    assert "are the same" in invoke("guardrails", "diff", new, new).stdout


def test_differences_are_told_as_json(rulebook: Path, home: Path, invoke: Invoke) -> None:
    new = write(home / "new.yaml", content([rule("other", "true", "warn")], name="mine"))
    answer = json.loads(invoke("guardrails", "diff", rulebook, new, "--json").stdout)
    assert answer["oldVersion"] != answer["newVersion"]
    assert list(answer["guardrails"]["added"]) == ["other"]
    assert answer["guardrails"]["removed"]["nothing-risky"]["message"] == "Too risky"
    assert answer["inputs"] == {
        "added": {},
        "removed": {"risky": {"type": "bool", "default": False}},
        "changed": {},
    }


def test_what_cannot_be_loaded_has_no_differences(rulebook: Path, home: Path, invoke: Invoke) -> None:
    broken = write(home / "broken.yaml", content([rule("r", "1")]))
    for pair in ((rulebook, broken), (broken, rulebook)):
        result = invoke("guardrails", "diff", *pair)
        assert result.exit_code == 3
        assert f"{broken}:" in result.stderr


OLD = """\
- id: reviewed
  description: Production needs a review
  condition_affects_production: true
  requires_code_review: true
  action: block
"""


def test_old_guardrails_become_a_rulebook_that_is_printed_or_written(home: Path, invoke: Invoke) -> None:
    old = write(home / "cornerstone.yaml", OLD)
    printed = invoke("guardrails", "convert", old)
    assert printed.exit_code == 0
    assert "here it counts as a match: reviewed" in printed.stderr
    new = home / "guardrails" / "cornerstone.yaml"
    assert invoke("guardrails", "convert", old, "--output", new).stdout == ""
    assert new.read_text() == printed.stdout
    assert "1 guardrail, 2 inputs, 0 tests" in invoke("guardrails", "validate", new).stdout
    again = invoke("guardrails", "convert", old, "--output", new)
    assert (again.exit_code, new.read_text()) == (1, printed.stdout)
    answer = json.loads(invoke("guardrails", "convert", old, "--json", "--skip-absent").stdout)
    assert "has(context.affects_production)" in answer["rulebook"]
    assert ["reviewed"] in answer["notes"].values()


def test_old_guardrails_that_are_ambiguous_are_refused(home: Path, invoke: Invoke) -> None:
    old = write(home / "old.yaml", OLD.replace("block", "blok").replace("production: true", "production: 'true'"))
    result = invoke("guardrails", "convert", old, "--output", home / "new.yaml")
    assert result.exit_code == 3
    assert not (home / "new.yaml").exists()
    assert f"{old}:3: reviewed: affects_production: 'true' may be meant" in result.stderr
    assert f"{old}:5: reviewed: `action` must be one of block, warn, log; blok forbade nothing" in result.stderr
    assert len(json.loads(invoke("guardrails", "convert", old, "--json").stdout)["problems"]) == 2
