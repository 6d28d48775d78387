"""The commands for authors of rulebooks: start or convert one, validate it, run its tests, and compare two."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cstp_grpc.cli.command_decorators import config_option, with_output
from cstp_grpc.cli.local_check import RULES_PATH, locate_rules
from cstp_grpc.cli.output import Output, json_members, json_text, to_printable
from cstp_grpc.common.counted_nouns import count_noun
from cstp_grpc.common.lazy_imports import LazyModule

if TYPE_CHECKING:
    from cstp_grpc.cli import junit_report
    from cstp_grpc.core.guardrails import cognition_engines, rule_set_diff, rulebook, rulebook_files, rulebook_tests
    from cstp_grpc.core.guardrails.model import RuleSet
    from cstp_grpc.core.guardrails.rule_set_diff import ItemDiff, JsonObject
    from cstp_grpc.core.guardrails.rulebook import RulebookError
    from cstp_grpc.core.guardrails.rulebook_tests import RulebookTestResult, RuleCoverage
else:
    junit_report = LazyModule("cstp_grpc.cli.junit_report")
    rule_set_diff = LazyModule("cstp_grpc.core.guardrails.rule_set_diff")
    rulebook = LazyModule("cstp_grpc.core.guardrails.rulebook")
    cognition_engines = LazyModule("cstp_grpc.core.guardrails.cognition_engines")
    rulebook_files = LazyModule("cstp_grpc.core.guardrails.rulebook_files")
    rulebook_tests = LazyModule("cstp_grpc.core.guardrails.rulebook_tests")

STARTER: Final = Path(__file__).with_name("examples") / "rulebook.yaml"
DEFAULT_FILE: Final = Path("guardrails/rules.yaml")
EXIT_INVALID: Final = 3
"""The exit code if rulebooks cannot be loaded; this one and the next are those of `cerbos compile`."""
EXIT_TESTS_FAILED: Final = 4
"""The exit code if their tests fail, or leave guardrails untried where that is demanded."""
LOOK_SECONDS: Final = 0.3
"""Seconds between two looks at the files. Chosen: shorter than an author needs to look at the terminal."""
FILE_PATH: Final = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("file", type=FILE_PATH, default=DEFAULT_FILE)
@with_output
def new_command(out: Output, file: Path) -> None:
    """Write a rulebook to start from. FILE is guardrails/rules.yaml unless given.

    It passes its own tests. An existing file is not overwritten; - writes to standard output.

    \b
    Examples:
      cstp guardrails new
      cstp guardrails new guardrails/databases.yaml && cstp guardrails test guardrails/databases.yaml
    """
    content = STARTER.read_text(encoding="utf-8")
    if str(file) == "-":
        out.write_verbatim(content)
        return
    create_file(file, content)
    if out.json_wanted:
        out.document({"file": str(file)})
    out.line(f"{file} was written. Try it: cstp guardrails test {file}")


def create_file(file: Path, content: str) -> None:
    """Create a file and the folders that it is in. Raises click.ClickException if it exists or cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        # Created exclusively: what somebody has written meanwhile must not be lost.
        with file.open("x", encoding="utf-8") as stream:
            stream.write(content)
    except FileExistsError as error:
        raise click.ClickException(f"{file} exists already.") from error
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error


@click.command()
@click.argument("path", type=RULES_PATH, required=False)
@config_option
@with_output
def validate_command(out: Output, path: Path | None) -> None:
    """Check that a rulebook can be loaded. PATH is a rulebook or folder. [default: the configured one]

    Every mistake is printed as `file:line: rule: reason`. Exit code 0 means that a server would start with it, 3 that
    it would not, 1 any other error.

    \b
    Examples:
      cstp guardrails validate
      cstp guardrails validate guardrails/ --json
    """
    rules = load_or_exit(out, locate_rules(path))
    if out.json_wanted:
        tests = sum(len(each.tests) for each in rules.rulebooks)
        counts = {"guardrails": len(rules.guardrails), "inputs": len(rules.inputs), "tests": tests}
        out.document({"valid": True, "version": rules.version, **counts, "problems": []})
    for each in rules.rulebooks:
        parts = ((each.guardrails, "guardrail"), (each.inputs, "input"), (each.tests, "test"))
        out.line(f"{each.file}: {', '.join(count_noun(len(part), noun) for part, noun in parts)}")
    out.line(f"Valid, version {rules.version}")


@click.command()
@click.argument("path", type=RULES_PATH, required=False)
@click.option("--require-coverage", is_flag=True, help="Fail unless tests fire each guardrail, and others pass it.")
@click.option("--junit", type=FILE_PATH, metavar="FILE", help="Write the results to FILE too, as JUnit XML.")
@click.option("--watch", is_flag=True, help="Run them again whenever a file changes, until Ctrl-C.")
@config_option
@with_output
def test_command(out: Output, path: Path | None, require_coverage: bool, junit: Path | None, watch: bool) -> None:
    """Run the tests of a rulebook. PATH is a rulebook or folder. [default: the configured one]

    Guardrails that no test fires, and those that no test passes, are listed. Exit code 0 means that all tests passed, 3
    that the rulebook cannot be used, 4 that tests failed, 1 any other error.

    \b
    Examples:
      cstp guardrails test
      cstp guardrails test guardrails/ --watch
      cstp guardrails test guardrails/ --require-coverage --junit guardrails.xml
    """
    rules_path = locate_rules(path)
    if watch:
        if out.json_wanted:
            raise click.UsageError("--watch is for people: it prints no JSON.")
        # Ctrl-C is the regular end of a watch.
        with suppress(KeyboardInterrupt):
            for _ in wait_for_changes(rules_path):
                run_and_report(out, rules_path, junit, require_coverage=require_coverage)
                out.line(f"Waiting for a change of {rules_path}; Ctrl-C ends.")
        return
    code = run_and_report(out, rules_path, junit, require_coverage=require_coverage)
    if code:
        click.get_current_context().exit(code)


def wait_for_changes(path: Path) -> Iterator[Sequence[rulebook_files.RulebookFile]]:
    """Yield the files of the rulebooks at a path at once, and again whenever they are others."""
    seen: Sequence[rulebook_files.RulebookFile] | None = None
    while True:
        # By their content: editors replace files, and stamps are too coarse for two changes in a row.
        found = read_present_files(path)
        if found != seen:
            seen = found
            yield found
        else:
            time.sleep(LOOK_SECONDS)


def read_present_files(path: Path) -> Sequence[rulebook_files.RulebookFile]:
    """Return the files of the rulebooks at a path and those that they extend; empty if they cannot be read."""
    try:
        return rulebook.collect_rulebook_files(path, lambda _path, _error: None)
    except OSError:
        # The tests are run without, and say why they cannot be.
        return []


def run_and_report(out: Output, path: Path, junit: Path | None, *, require_coverage: bool) -> int:
    """Run the tests of rulebooks, print and write the results, and return the exit code."""
    try:
        rules = rulebook.load_rule_set(path)
    except rulebook.RulebookError as error:
        if junit:
            junit_report.write_problem_report(junit, error.problems)
        print_problems(out, error)
        return EXIT_INVALID
    results = rulebook_tests.run_rulebook_tests(rules)
    coverage = rulebook_tests.measure_coverage(rules, results)
    if junit:
        junit_report.write_test_report(junit, results, coverage if require_coverage else ())
    print_results(out, rules, results, coverage)
    untried = require_coverage and any(item.gaps for item in coverage)
    return EXIT_TESTS_FAILED if untried or not all(result.passed for result in results) else 0


def print_results(
    out: Output, rules: RuleSet, results: Sequence[RulebookTestResult], coverage: Sequence[RuleCoverage]
) -> None:
    """Print the tests that failed, and the guardrails that tests leave untried."""
    failed = [result for result in results if not result.passed]
    if out.json_wanted:
        out.document(
            {
                "version": rules.version,
                "passed": len(results) - len(failed),
                "failed": len(failed),
                "tests": [
                    json_members(each, "file", "line", "rulebook", "name", "passed", "failures") for each in results
                ],
                "coverage": [
                    {
                        **{"id": each.guardrail.id, "file": each.rulebook.file, "line": each.guardrail.line},
                        **{"fired": each.is_fired, "passed": each.is_passed},
                    }
                    for each in coverage
                ],
            }
        )
    for result in failed:
        out.line(to_printable(f"{result.file}:{result.line}: {result.rulebook}: {result.name}"))
        for failure in result.failures:
            out.line(to_printable(f"  {failure}"))
    out.line(f"{len(results) - len(failed)} of {count_noun(len(results), 'test')} passed.")
    for item in coverage:
        if item.gaps:
            place = f"{item.rulebook.file}:{item.guardrail.line}"
            out.line(f"{place}: {item.guardrail.id}: {' and '.join(item.gaps)}")


@click.command()
@click.argument("old", type=RULES_PATH)
@click.argument("new", type=RULES_PATH)
@with_output
def diff_command(out: Output, old: Path, new: Path) -> None:
    """Compare two rulebooks. OLD and NEW are rulebooks or folders of them.

    Guardrails and inputs are compared key by key, regardless of files and formatting. The exit code is 0 even if they
    differ, and 3 if one cannot be used.

    \b
    Examples:
      cstp guardrails diff /etc/cstp/guardrails guardrails/
      git show HEAD:guardrails/ours.yaml > before.yaml && cstp guardrails diff before.yaml guardrails/ours.yaml
    """
    diff = rule_set_diff.compare_rule_sets(load_or_exit(out, old), load_or_exit(out, new))
    if out.json_wanted:
        differences = {"guardrails": item_diff_to_json(diff.guardrails), "inputs": item_diff_to_json(diff.inputs)}
        out.document({**json_members(diff, "old_version", "new_version"), **differences})
        return
    if diff.is_empty:
        out.line("The guardrails and their inputs are the same.")
    for noun, items in (("guardrail", diff.guardrails), ("input", diff.inputs)):
        for line in describe_differences(noun, items):
            out.line(to_printable(line))
    out.line(f"Compared {diff.old_version} with {diff.new_version}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--output", type=FILE_PATH, metavar="FILE", help="Write the rulebook to FILE, which must not exist yet.")
@click.option(
    "--skip-absent",
    is_flag=True,
    help="Allow actions that lack an input of a condition, as before. [default: block them]",
)
@with_output
def convert_command(out: Output, file: Path, output: Path | None, skip_absent: bool) -> None:
    """Convert rules of cognition-engines. FILE has them in either YAML dialect; the result is a rulebook.

    The rulebook is printed, with notes on rules that now behave differently. If a rule is ambiguous, the command gives
    the reason and converts nothing. Exit code 3 means that, 1 any other error.

    \b
    Examples:
      cstp guardrails convert cornerstone.yaml
      cstp guardrails convert cornerstone.yaml --output guardrails/cornerstone.yaml
    """
    try:
        content = rulebook_files.read_rulebook_file(file, accepts_pipe=True).content
        conversion = cognition_engines.convert_rulebook(str(file), content, skips_absent=skip_absent)
    except rulebook.RulebookError as error:
        print_problems(out, error)
        click.get_current_context().exit(EXIT_INVALID)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
    if output:
        create_file(output, conversion.text)
    if out.json_wanted:
        out.document({"rulebook": conversion.text, "notes": conversion.notes})
        return
    if not output:
        out.write_verbatim(conversion.text)
    for note, ids in conversion.notes.items():
        out.note(f"{note}: {', '.join(ids)}")


def describe_differences(noun: str, items: ItemDiff) -> Iterator[str]:
    for name, description in items.added.items():
        yield f"{noun} {name} was added: {summarize_item(description)}"
    for name, description in items.removed.items():
        yield f"{noun} {name} was removed: {summarize_item(description)}"
    for item in items.changed:
        yield f"{noun} {item.name} was changed"
        for change in item.changes:
            if change.old is None:
                yield f"  {change.key} is new: {describe_value(change.new)}"
            elif change.new is None:
                yield f"  {change.key} is gone; it was {describe_value(change.old)}"
            else:
                yield f"  {change.key} is {describe_value(change.new)}"
                yield f"  {' ' * len(change.key)} was {describe_value(change.old)}"


SUMMARY_KEYS: Final = ("type", "severity", "enforcement", "name", "default")
"""The keys by which an added or removed guardrail or input is described."""


def summarize_item(description: JsonObject) -> str:
    values = (describe_value(description[key]) for key in SUMMARY_KEYS if key in description)
    return ", ".join(value for value in values if value != "enforce")


def describe_value(value: object) -> str:
    return value if isinstance(value, str) else json_text(value, indent=None)


def load_or_exit(out: Output, path: Path) -> RuleSet:
    try:
        return rulebook.load_rule_set(path)
    except rulebook.RulebookError as error:
        print_problems(out, error)
        click.get_current_context().exit(EXIT_INVALID)


def print_problems(out: Output, error: RulebookError) -> None:
    if out.json_wanted:
        problems = [json_members(each, "file", "line", "where", "reason") for each in error.problems]
        out.document({"valid": False, "problems": problems})
        return
    for problem in error.problems:
        out.note(str(problem))
    out.note(f"{count_noun(len(error.problems), 'problem')}.")


def item_diff_to_json(items: ItemDiff) -> dict[str, object]:
    return {
        "added": dict(items.added),
        "removed": dict(items.removed),
        "changed": {
            item.name: {change.key: {"old": change.old, "new": change.new} for change in item.changes}
            for item in items.changed
        },
    }


@click.command(name="schema")
@with_output
def schema_command(out: Output) -> None:
    """Print the JSON Schema of rulebooks. Editors use it to complete and check rulebooks.

    \b
    Examples:
      cstp guardrails schema > rulebook.schema.json
    """
    from cstp_grpc.core.guardrails.rulebook_schema import build_rulebook_schema

    out.document(build_rulebook_schema())
