from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cstp_grpc.contract.enums import Severity
from cstp_grpc.core.guardrails.rulebook import RulebookError, load_rule_set
from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path
from tests.core.guardrails.rulebooks import content, rule, write
from tests.named_case import named_case

GOOD = """\
apiVersion: cstp.guardrails/v1
metadata: {name: production-safety, version: "2026.1", owner: platform}
inputs:
  affectsProduction:   {type: bool, default: false}
  codeReviewCompleted: {type: bool, default: false}
  rolloutPercent:      {type: number}
guardrails:
  - id: no-production-without-review
    name: Production Requires Review
    when: context.affectsProduction && !context.codeReviewCompleted
    severity: block
    message: Production changes require completed code review
    suggestion: Complete code review before deploying
tests:
  - name: unreviewed production change
    action: {description: deploy, stakes: high, confidence: 0.9, context: {affectsProduction: true}}
    expect: [no-production-without-review]
"""


def problems(path: Path) -> list[str]:
    with pytest.raises(RulebookError) as error:
        load_rule_set(path)
    return str(error.value).replace(f"{path}", path.name).splitlines()


def changed(tmp_path: Path, old: str, new: str) -> list[str]:
    """Return the problems of the good rulebook after one change."""
    assert GOOD.count(old) == 1
    return problems(write(tmp_path / "rules.yaml", GOOD.replace(old, new)))


def test_a_rulebook_is_read_as_it_is_written(tmp_path: Path) -> None:
    rules = load_rule_set(write(tmp_path / "rules.yaml", GOOD))

    [rulebook] = rules.rulebooks
    [guardrail] = rules.guardrails
    assert (rulebook.name, rulebook.version, rulebook.owner) == ("production-safety", "2026.1", "platform")
    assert (guardrail.id, guardrail.severity) == ("no-production-without-review", Severity.BLOCK)
    assert guardrail.when.source == "context.affectsProduction && !context.codeReviewCompleted"
    assert rules.inputs["rolloutPercent"].default is None
    assert [test.name for test in rulebook.tests] == ["unreviewed production change"]


def test_what_is_wrong_is_named_with_file_line_and_rule(tmp_path: Path) -> None:
    for old, new, expected in [
        ("cstp.guardrails/v1", "cstp.guardrails/v2", "rules.yaml:1: rulebook: `apiVersion` must be cstp.guardrails/v1"),
        ("apiVersion: cstp.guardrails/v1\n", "", "rules.yaml:1: rulebook: `apiVersion` is missing"),
        ('"2026.1"', "2026.1", "rules.yaml:2: metadata: `version` must be a string, but is a number; put it in quotes"),
        ("severity: block", "severity: blok", "must be one of block, warn, approve, not blok"),
        ("severity: block", "action: block", "unknown key `action`"),
        ("    when:", "    wehn:", "unknown key `wehn`; did you mean `when`?"),
        (
            "    severity: block",
            "    sevrity:\n    severity: block",
            "rules.yaml:11: no-production-without-review: unknown",
        ),
        ("    message: Production changes require completed code review\n", "", "`message` is missing"),
        (
            "severity: block",
            "severity: block\n    severity: warn",
            "rules.yaml:12: rulebook: the key `severity` is given",
        ),
        ("{type: number}", "{type: float}", "inputs.rolloutPercent: `type` must be one of bool, number, string"),
        ("{type: number}", "{type: number, default: '5'}", "the default must be a number, but is a string"),
        ("{type: number}", "{type: number, default: yes}", "`yes` may be a bool or a text"),
        ("rolloutPercent: ", "rollout-percent: ", "inputs.rollout-percent: is not a name that an expression can read"),
        ("rolloutPercent: ", "in: ", "inputs.in: is not a name that an expression can read"),
        ("id: no-production", "id: no production", "`id` must be 1 to 100 letters"),
        (
            "!context.codeReview",
            "!context.codeReveiw",
            "context.codeReveiwCompleted is not declared in inputs; did you",
        ),
        ("expect: [no-", "expect: [on-", "`expect` names on-production-without-review, but this rulebook has no such"),
        ("stakes: high", "stakes: huge", "unreviewed production change: `stakes` must be one of low, medium"),
        ("confidence: 0.9", "confidence: 9", "`confidence` must be from 0 to 1"),
        ("description: deploy, ", "", "unreviewed production change: `description` is missing"),
        (
            "context: {affects",
            "context: {b: &x 1, c: *x, affects",
            "rules.yaml:16: rulebook: anchors are not supported",
        ),
        ("severity: block", "severity: !!python/name:os.system block", "tags are not supported"),
        ("confidence: 0.9", "confidence: high", "`confidence` must be a number, but is a string"),
        ("expect: [no-production-without-review]", "expect: {}", "`expect` must be a list, but is a map"),
        (
            "expect: [no-production-without-review]",
            "expect: [1]",
            "`expect` contains a number, but must contain strings",
        ),
        ("tests:", "---\ntests:", "rules.yaml:14: rulebook: contains more than one document"),
        ("tests:", "\ttests:", "rules.yaml:14: rulebook: is not YAML"),
        ("tests:", "tests:\x07", "rules.yaml:14: rulebook: contains the character '\\x07'"),
    ]:
        with named_case(old, new, expected):
            found = changed(tmp_path, old, new)

            assert any(expected in line for line in found), found
            assert all(re.match(r"rules\.yaml:\d+: \S.*: \S", line) for line in found), found


def test_every_problem_is_reported_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("severity: block", "severity: blok").replace("{type: number}", "{type: numbr}")
    text = text.replace("{type: bool, default: false}\n  code", "{type: bool, default: 0}\n  code")
    text = text.replace("name: production-safety, ", "")

    assert [line.rpartition(": ")[0] for line in problems(write(tmp_path / "rules.yaml", text))] == [
        "rules.yaml:2: metadata",
        "rules.yaml:4: inputs.affectsProduction",
        "rules.yaml:6: inputs.rolloutPercent",
        "rules.yaml:11: no-production-without-review",
    ]


def test_an_expression_that_cannot_work_fails_at_load(tmp_path: Path) -> None:
    for when, reason in [
        ("context.flag &&", "Syntax error"),
        ("context.count", "must be a bool, but is double"),
        ("context.details.urgent", "must be a bool, but is dyn; compare it, for instance with == true"),
        ("context.flga", "context.flga is not declared in inputs; did you mean context.flag?"),
        ("has(context.flga)", "context.flga is not declared in inputs; did you mean context.flag?"),
        ("flag", "undeclared reference to 'flag'"),
        ("action.stakes >= stakes.hihg", "there is no stakes.hihg; did you mean stakes.high?"),
        ("action.stakes == 'high'", "stakes compare with stakes.low, stakes.medium, stakes.high and stakes.critical"),
        ("action.confidnce < 0.5", "there is no action.confidnce; did you mean action.confidence?"),
        ("context.count == 'many'", "found no matching overload for '_==_' applied to '(double, string)'"),
        ("context.count + 1 > 2", "write 5.0 instead of 5"),
        ("context.count % 2 == 0", "'(double, int)'; % takes whole numbers only: write int(x) % 2"),
        ("context.count % 2.0 == 0.0", "'(double, double)'; % takes whole numbers only: write int(x) % 2"),
        ("context['flag']", "reads context as a whole; read it by name: context.NAME"),
        ("size(context) > 1", "reads context as a whole"),
        ("[1].all(context, context > 0)", "reads context as a whole"),
        ("has((context.flag))", "has() takes a plain path such as context.x"),
        ("has.context.flag", "has() takes a plain path such as context.x"),
        ("has(context.note)", "asks has(context.note), which is always true, because the input has a default"),
        ("has(action.stakes)", "has(action.stakes) is always true"),
        ("(" * 40 + "true" + ")" * 40, "recursion limit"),
        ("context.flag || " * 1000 + "true", "`when` is longer than 10000 characters"),
    ]:
        with named_case(when, reason):
            inputs = {
                "flag": {"type": "bool"},
                "count": {"type": "number"},
                "details": {"type": "map"},
                "note": {"type": "string", "default": ""},
            }
            [problem] = problems(write(tmp_path / "rules.yaml", content([rule("r", when)], inputs)))

            assert re.match(r"rules\.yaml:\d+: r: `when` ", problem)
            assert reason in problem


def test_a_file_that_is_no_rulebook_is_refused(tmp_path: Path) -> None:
    for text, reason in [
        (b"", "rules.yaml:1: rulebook: is empty"),
        (b"# nothing\n", "rules.yaml:1: rulebook: is empty"),
        (b"- a\n", "rules.yaml:1: rulebook: must be a map, but is a list"),
        (b"a: 1\n\xff: 2\n", "rules.yaml:2: rulebook: is not UTF-8"),
        (b"a:\n " + b"[" * 100 + b"]" * 100, "rules.yaml:2: rulebook: is nested deeper than 40 levels"),
        (b"[" * 1_000_000, "rules.yaml:1: rulebook: is nested deeper than 40 levels"),
        (b"#" * 1_100_000, "rules.yaml:1: rulebook: is larger than 1048576 bytes"),
        (b"? [a]\n: 1\n", "rules.yaml:1: rulebook: a key must be a text"),
        (b"a: &a [*a]\n", "rules.yaml:1: rulebook: aliases are not supported"),
    ]:
        with named_case(text, reason):
            path = tmp_path / "rules.yaml"
            path.write_bytes(text)

            assert reason in "\n".join(problems(path))


def test_an_alias_bomb_is_refused_without_being_expanded(tmp_path: Path) -> None:
    bomb = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 30))

    assert "aliases are not supported" in "\n".join(problems(write(tmp_path / "rules.yaml", bomb)))


def test_no_guardrails_are_an_error_since_they_would_allow_everything(tmp_path: Path) -> None:
    [problem] = problems(write(tmp_path / "rules.yaml", content([])))

    assert "`guardrails` must contain at least one" in problem


def test_a_mistake_is_reported_once(tmp_path: Path) -> None:
    text = GOOD[: GOOD.index("guardrails:\n")] + "guardrails: none\n"

    assert problems(write(tmp_path / "rules.yaml", text)) == [
        "rules.yaml:7: rulebook: `guardrails` must be a list, but is a string"
    ]


def test_a_folder_is_read_in_the_order_of_its_names(tmp_path: Path) -> None:
    write(tmp_path / "b.yml", content([rule("b", "true")], name="second"))
    write(tmp_path / "a.yaml", content([rule("a", "true")], name="first"))
    write(tmp_path / "notes.txt", "not a rulebook")
    write(tmp_path / ".a.yaml", "left by an editor")

    rules = load_rule_set(tmp_path)

    assert [guardrail.id for guardrail in rules.guardrails] == ["a", "b"]
    assert re.fullmatch(r"first@1,second@1\+[0-9a-f]{12}", rules.version)


def test_one_bad_file_keeps_the_whole_folder_from_loading(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", content([rule("a", "true")]))
    write(tmp_path / "b.yaml", content([rule("b", "tru")]))
    (tmp_path / "c.yaml").mkdir()
    (tmp_path / "d.yaml").symlink_to(tmp_path / "gone")

    with pytest.raises(RulebookError) as error:
        load_rule_set(tmp_path)

    assert [(Path(p.file).name, p.where) for p in error.value.problems] == [
        ("b.yaml", "b"),
        ("c.yaml", "rulebook"),
        ("d.yaml", "rulebook"),
    ]


def test_identifiers_are_unique_and_inputs_agree_across_files(tmp_path: Path) -> None:
    first, second = {"x": {"type": "number", "default": 1}}, {"x": {"type": "number"}}
    write(tmp_path / "a.yaml", content([rule("same", "context.x > 1"), rule("same", "true")], first))
    write(tmp_path / "b.yaml", content([rule("same", "context.x > 1")], second))

    with pytest.raises(RulebookError) as error:
        load_rule_set(tmp_path)

    found = [(Path(p.file).name, p.where, p.reason.split(" ")[:4]) for p in error.value.problems]
    assert found == [
        ("a.yaml", "same", ["the", "id", "is", "used"]),
        ("b.yaml", "inputs.x", ["differs", "from", "its", "declaration"]),
        ("b.yaml", "same", ["the", "id", "is", "used"]),
    ]


def test_rulebooks_may_share_an_input_that_they_declare_alike(tmp_path: Path) -> None:
    inputs = {"x": {"type": "bool", "default": False}}
    write(tmp_path / "a.yaml", content([rule("a", "context.x")], inputs))
    write(tmp_path / "b.yaml", content([rule("b", "!context.x")], inputs))

    assert set(load_rule_set(tmp_path).inputs) == {"x"}


def test_an_input_must_be_declared_in_the_file_that_reads_it(tmp_path: Path) -> None:
    write(tmp_path / "a.yaml", content([rule("a", "context.x")], {"x": {"type": "bool"}}))
    write(tmp_path / "b.yaml", content([rule("b", "context.x")]))

    with pytest.raises(RulebookError, match=r"b\.yaml:\d+: b: `when` context\.x is not declared in inputs"):
        load_rule_set(tmp_path)


@pytest.mark.parametrize("name", ["missing.yaml", "empty"])
def test_where_there_is_nothing_to_load_it_says_so(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(RulebookError, match=name):
        load_rule_set(tmp_path / name)


def test_the_version_changes_with_the_content_and_not_with_the_place(tmp_path: Path) -> None:
    first = load_rule_set(write(tmp_path / "a.yaml", GOOD)).version
    moved = load_rule_set(write(tmp_path / "b.yaml", GOOD)).version
    edited = load_rule_set(write(tmp_path / "a.yaml", GOOD.replace("severity: block", "severity: warn"))).version

    assert first == moved
    assert first.startswith("production-safety@2026.1+")
    assert edited != first


def test_many_rulebooks_do_not_make_the_version_long(tmp_path: Path) -> None:
    for number in range(30):
        write(tmp_path / f"{number}.yaml", content([rule(f"r{number}", "true")], name=f"book-{number:02}"))

    assert re.fullmatch(
        r"book-00@1,book-01@1,book-02@1,book-03@1,book-04@1,25 more\+\w{12}", load_rule_set(tmp_path).version
    )


def test_the_wheel_carries_the_default_rulebook_to_where_it_is_looked_for() -> None:
    root = Path(__file__).parents[3]
    with (root / "pyproject.toml").open("rb") as stream:
        included = tomllib.load(stream)["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]

    assert packaged_rulebook_path("default") == root / "guardrails" / "default.yaml"
    assert included["guardrails"] == "cstp_grpc/core/guardrails/packaged"


PIECES = [
    "&a ",
    "*a",
    "- ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    '"',
    "'",
    "|\n",
    "\n",
    "\t",
    "#",
    "!",
    "yes",
    "---\n",
    "null",
    "\0",
    "é",
]


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    text = packaged_rulebook_path("default").read_text(encoding="utf-8")
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = min(len(text), start + draw(st.integers(0, 40)))
        text = text[:start] + draw(st.sampled_from(PIECES) | st.text(max_size=5)) + text[end:]
    encoded = text.encode("utf-8", "surrogatepass")
    return draw(st.sampled_from([encoded, encoded[: draw(st.integers(0, len(encoded)))]]))


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mangled") / "rules.yaml"


def outcome(path: Path) -> list[tuple[int, str]]:
    """Return the guardrails of a rulebook, or what is wrong with it, by line."""
    try:
        return [(guardrail.line, guardrail.id) for guardrail in load_rule_set(path).guardrails]
    except RulebookError as error:
        return [(problem.line, problem.reason) for problem in error.problems]


@settings(deadline=None)
@given(text=mangled() | st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "replace")))
def test_a_mangled_file_either_loads_or_names_a_line(scratch: Path, text: Any) -> None:
    scratch.write_bytes(text)
    lines = len(re.split(rb"\r\n|[\r\n]|\xc2\x85|\xe2\x80[\xa8\xa9]", text))
    found = outcome(scratch)

    assert found
    assert all(1 <= line <= lines and rest for line, rest in found)
