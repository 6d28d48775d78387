"""Runs the exchanges under tests/cases/jsonrpc: those of the JSON-RPC 2.0 specification's section 7, with our methods
in place of its examples, and what HTTP adds to them.

A case is one exchange: `requirement` (the example that it is), what comes before it (tests/case_setup.py says how),
`caller`, `body` (the text that is sent), `answer`: its HTTP `status` and its `body`, a JSON value with the placeholders
of tests/matching.py and absent where nothing is answered, and `after`: later calls with their `result`. What must match
exactly says `exact: true`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from tests.case_servers import CaseRun, CaseServers, assign_servers, read_case
from tests.case_setup import CASES, prepare, token_of
from tests.harness import HttpAnswer
from tests.matching import differences

FILES = sorted((CASES / "jsonrpc").glob("*.yaml"))
RUNS = assign_servers(CaseRun(path.stem, read_case(path), "jsonrpc") for path in FILES)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseServers]:
    with closing(CaseServers(RUNS, tmp_path_factory.mktemp("cases"))) as servers:
        yield servers


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_exchange(run: CaseRun, servers: CaseServers) -> None:
    case, caller = run.case, servers.caller(run)
    prepare(case, caller)
    judge(case, caller.post(case["body"], token_of(case)))
    for later in case.get("after", []):
        result = caller.call(later["call"], later["params"], token_of(later)).result
        agree(differences(later["result"], result, exact=case.get("exact", False)))


def judge(case: dict[str, Any], answer: HttpAnswer) -> None:
    expected, exact = case["answer"], case.get("exact", False)
    assert answer.status == expected["status"], answer
    if "body" not in expected:
        assert answer.content == b""
        return
    assert answer.content_type == "application/json"
    actual = json.loads(answer.content)
    if isinstance(expected["body"], list) and isinstance(actual, list):
        agree(batch_differences(expected["body"], actual, exact=exact))
    else:
        agree(differences(expected["body"], actual, "body", exact=exact))
    answered = numeric_ids(answer.content)
    assert not answered or answered <= numeric_ids(case["body"]), "a number is not spelled as it was sent"


def agree(found: Iterator[str]) -> None:
    problems = list(found)
    assert not problems, "\n".join(problems)


def batch_differences(expected: list[Any], actual: list[Any], *, exact: bool) -> Iterator[str]:
    """Yield where the answers to a batch differ; they may come in any order, several of them with the id null."""
    left = list(actual)
    for wanted in expected:
        candidates = [answer for answer in left if id_of(answer) == id_of(wanted)]
        if not candidates:
            yield f"nothing is answered for the id {id_of(wanted)}"
            continue
        best = min(candidates, key=lambda answer: len(list(differences(wanted, answer, exact=exact))))
        left.remove(best)
        yield from differences(wanted, best, f"body with the id {id_of(wanted)}", exact=exact)
    for answer in left:
        yield f"not expected: {answer!r}"


def id_of(answer: Any) -> str:
    """Return the id of an answer as JSON."""
    return json.dumps(answer["id"]) if isinstance(answer, dict) and "id" in answer else "(none)"


class Spelled(str):
    """A number as it is written."""


def numeric_ids(body: str | bytes) -> set[str]:
    """Return those ids in a body that are numbers, as they are written: 1.50 is not 1.5."""
    document = json.loads(body, parse_int=Spelled, parse_float=Spelled)
    items = document if isinstance(document, list) else [document]
    ids = [item.get("id") for item in items if isinstance(item, dict)]
    return {item_id for item_id in ids if isinstance(item_id, Spelled)}
