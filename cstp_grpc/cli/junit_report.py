"""Reports of rulebooks' tests as JUnit XML, in the form that CI systems read (github.com/testmoapp/junitxml)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import click

if TYPE_CHECKING:
    from cstp_grpc.core.guardrails.parsing import RulebookProblem
    from cstp_grpc.core.guardrails.rulebook_tests import RulebookTestResult, RuleCoverage

# What XML 1.0 cannot hold, even escaped (section 2.2); a rulebook can say it with escapes.
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_test_report(file: Path, results: Sequence[RulebookTestResult], coverage: Iterable[RuleCoverage]) -> None:
    """Write the results of tests, and a case for each given coverage of a guardrail. Raises click.ClickException."""
    root = ElementTree.Element("testsuites")
    for (path, rulebook), members in groupby(results, lambda result: (result.file, result.rulebook)):
        suite = add_suite(root, rulebook)
        for result in members:
            case = add_case(suite, result.name, rulebook, path, result.line)
            add_failures(case, "failure", result.failures)
    covered = list(coverage)
    if covered:
        suite = add_suite(root, "coverage")
        for item in covered:
            case = add_case(suite, item.guardrail.id, item.rulebook.name, item.rulebook.file, item.guardrail.line)
            add_failures(case, "failure", item.gaps)
    write_document(file, root)


def write_problem_report(file: Path, problems: Iterable[RulebookProblem]) -> None:
    """Write the problems because of which no test was run. Raises click.ClickException."""
    root = ElementTree.Element("testsuites")
    suite = add_suite(root, "rulebooks")
    for problem in problems:
        case = add_case(suite, problem.where, "rulebooks", problem.file, problem.line)
        add_failures(case, "error", [problem.reason])
    write_document(file, root)


def add_suite(root: ElementTree.Element, name: str) -> ElementTree.Element:
    return ElementTree.SubElement(root, "testsuite", name=to_xml_text(name))


def add_case(suite: ElementTree.Element, name: str, group: str, file: str, line: int) -> ElementTree.Element:
    attributes = {"name": name, "classname": group, "file": file, "line": str(line)}
    return ElementTree.SubElement(suite, "testcase", {key: to_xml_text(text) for key, text in attributes.items()})


def add_failures(case: ElementTree.Element, kind: str, reasons: Sequence[str]) -> None:
    """Add why a case failed, if it did: one element, since most readers show the first only."""
    if reasons:
        failure = ElementTree.SubElement(case, kind, message=to_xml_text(reasons[0]))
        failure.text = to_xml_text("\n".join(reasons))


def to_xml_text(text: str) -> str:
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def write_document(file: Path, root: ElementTree.Element) -> None:
    """Write a document in place of a former one, with the counts that its suites have. Raises click.ClickException."""
    for element in (root, *root):
        element.set("tests", str(len(element.findall(".//testcase"))))
        element.set("failures", str(len(element.findall(".//failure"))))
        element.set("errors", str(len(element.findall(".//error"))))
    ElementTree.indent(root)
    # Replaced as a whole: a reader must not find half of it while tests run again.
    part = file.with_name(f"{file.name}.part")
    try:
        part.write_bytes(ElementTree.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n")
        part.replace(file)
    except OSError as error:
        raise click.ClickException(f"{file}: {error.strerror}") from error
