"""Runs every case under tests/cases, but those that are about JSON-RPC itself.

Each runs over gRPC, and one for each rpc and reason also over JSON-RPC: the bridge treats all results of an rpc and all
errors with one reason alike, and tests/client/test_codec.py covers their fields.

A case is one exchange: `requirement` (what it proves), what comes before it (tests/case_setup.py says how), `caller`,
`call`, `params`, `transports` where it is about one alone, and `expect`: a `result` with the placeholders of
tests/matching.py, or an `error` with its `reason`, the violated `fields`, the blocking `guardrails` and, where they are
stated, its `details`. Of the result and the details a case states what it is about; with `exact: true` nothing else may
be in them.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from cstp_grpc.contract.methods import contract_methods
from tests.case_servers import Case, CaseRun, CaseServers, RunCaller, assign_servers, read_case, setting_of
from tests.case_setup import CASES, insert_ids, plain, prepare, settings_of, token_of
from tests.harness import TOKENS, GrpcCaller, JsonRpcCaller, Outcome, bridging, running
from tests.matching import differences
from tests.named_case import named_case
from tests.waiting import wait_until

OTHER_FOLDERS = {"rulebooks", "jsonrpc"}
FILES = sorted(path for path in CASES.glob("*/*.yaml") if path.parent.name not in OTHER_FOLDERS)
TRANSPORTS = ["grpc", "jsonrpc"]
WORKERS = 3

JOURNAL = [
    {"title": "Use a queue between the services", "confidence": 0.9, "tags": ["queue"], "visibility": "shared"},
    {"title": "Use a queue between the services", "category": "process", "by": "bob", "visibility": "shared"},
    {"title": "Use no queue: „direct calls“ are enough 🚀", "stakes": "low", "date": "2025-01-02T03:04:05.000678Z"},
    {
        "title": "Drop the queue of the mail service",
        "confidence": 1,
        "outcome": "failure",
        "notes": "Mail was lost\nfor a day",
        "project": "mail",
        "reasons": [{"type": "analysis", "text": "It is slow", "strength": 0.1}, {"type": "precedent"}],
    },
    {"title": "Bob's own thoughts about the queue", "by": "bob"},
]
INTENT_CALLS = {"cstp.announceIntent", "cstp.closeIntent", "cstp.compactDecisions"}
QUERIES = [
    ({"query": "a queue between services"}, 4),
    ({"query": "the queue", "filters": {"minConfidence": 0.5, "dateAfter": "2025-01-01T00:00:00Z"}}, 2),
    ({"query": "queue of the mail", "limit": 2, "includeReasons": True}, 2),
    ({"query": "the queue", "filters": {"category": "security"}}, 0),
]
"""What is asked of the journal, and how many decisions answer it."""


def judge(case: Case, outcome: Outcome) -> None:
    expect, exact = case["expect"], case.get("exact", False)
    if "error" in expect:
        error = expect["error"]
        assert outcome.reason == error["reason"], outcome
        assert sorted(map(snake, outcome.fields)) == sorted(map(snake, error.get("fields", []))), outcome
        assert list(outcome.guardrails) == error.get("guardrails", []), outcome
        if "details" in error:
            agree(error["details"], outcome.details, "details", exact=exact)
    else:
        assert outcome.reason is None, outcome
        agree(expect["result"], outcome.result, "result", exact=exact)


def agree(expected: Any, actual: Any, path: str, *, exact: bool) -> None:
    found = list(differences(expected, actual, path, exact=exact))
    assert not found, "\n".join(found)


def snake(path: str) -> str:
    """Field paths are written as the contract does on gRPC and as JSON does on JSON-RPC."""
    return re.sub(r"([A-Z])", lambda match: "_" + match[1].lower(), path)


def case_runs() -> Iterator[CaseRun]:
    """Yield every case with each transport that it runs over."""
    cases = {f"{path.parent.name}/{path.stem}": read_case(path) for path in FILES}
    bridged: dict[tuple[str, str], str] = {}
    for name in sorted(cases, key=lambda name: cost_over_jsonrpc(cases[name])):
        if "transports" not in cases[name]:
            bridged.setdefault(kind_of_answer(cases[name]), name)
    for name, case in cases.items():
        both = bridged.get(kind_of_answer(case)) == name
        for transport in case.get("transports", TRANSPORTS if both else TRANSPORTS[:1]):
            yield CaseRun(f"{name}-{transport}", case, transport)


def cost_over_jsonrpc(case: Case) -> tuple[bool, int]:
    """Return what orders cases: cheap are those that share a bridge, and of these the one that states the most."""
    return bool(case.get("alone")), -len(str(case["expect"]))


def kind_of_answer(case: Case) -> tuple[str, str]:
    """Return the rpc that a case calls, and the reason of the error that it expects."""
    return case["call"], case["expect"].get("error", {}).get("reason", "")


RUNS = assign_servers(case_runs())


def runs_of_cases() -> Iterator[ParameterSet]:
    """Yield the runs of each case; slow are those with a server of their own, unless no other is answered alike."""
    answered = {kind_of_answer(run.case) for run in RUNS if not run.case.get("alone")}
    found: dict[str, list[CaseRun]] = {}
    for run in RUNS:
        found.setdefault(run.name.removesuffix(f"-{run.transport}"), []).append(run)
    for name, runs in found.items():
        case = runs[0].case
        is_repeated = bool(case.get("alone")) and kind_of_answer(case) in answered
        answered.add(kind_of_answer(case))
        yield pytest.param(runs, id=name, marks=pytest.mark.slow if is_repeated else ())


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseServers]:
    with closing(CaseServers(RUNS, tmp_path_factory.mktemp("cases"))) as servers:
        yield servers


@pytest.mark.parametrize("runs", list(runs_of_cases()))
def test_case(runs: Sequence[CaseRun], servers: CaseServers) -> None:
    for run in runs:
        with named_case(run.transport):
            caller = servers.caller(run)
            case = insert_ids(run.case, prepare(run.case, caller))
            judge(case, caller.call(case["call"], plain(case.get("params", {})), token_of(case)))


def test_every_public_rpc_has_a_case() -> None:
    called = {run.case["call"] for run in RUNS}
    public = {name for name, method in contract_methods().items() if method.public and not method.streaming}
    missing = sorted(public - called)
    assert not missing, (
        f"tests/cases: add a case with `call: {missing[0]}`, in the folder of its rpc or its service; {missing}"
    )


class WorkersCaller:
    """Calls several workers in turn: over gRPC each itself, over JSON-RPC through a bridge that does so.

    Searches of the others find what was recorded a moment later, so that all are asked for it before the next call.
    """

    def __init__(self, workers: Sequence[RunCaller], bridge: RunCaller | None) -> None:
        self._workers = workers
        self._bridge = bridge
        self._turns = itertools.cycle(workers)

    def call(self, method: str, params: Mapping[str, Any], token: str | None = TOKENS["alice"]) -> Outcome:
        caller = self._bridge or next(self._turns)
        outcome = caller.call(method, params, token)
        result = outcome.result or {}
        if revision := result.get("journalRevision") or result.get("decision", {}).get("journalRevision"):
            for worker in self._workers:
                found = worker.call("cstp.queryDecisions", {"query": "anything", "minJournalRevision": revision})
                assert found.reason is None, found
        return outcome


def choose_workers_runs(runs: Sequence[CaseRun]) -> list[CaseRun]:
    """Return one run for each kind of answer and transport, of those whose settings most runs have."""
    users = Counter(map(setting_of, runs))
    chosen: dict[tuple[str, str, str], CaseRun] = {}
    for run in sorted(runs, key=lambda run: -users[setting_of(run)]):
        chosen.setdefault((*kind_of_answer(run.case), run.transport), run)
    return assign_servers(chosen.values())


WORKERS_RUNS = choose_workers_runs(RUNS)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseServers]:
    with closing(CaseServers(WORKERS_RUNS, tmp_path_factory.mktemp("workers"), WORKERS)) as workers:
        yield workers


@pytest.mark.slow
@pytest.mark.parametrize("run", WORKERS_RUNS, ids=lambda run: run.name)
def test_case_with_workers(run: CaseRun, workers: CaseServers) -> None:
    caller = WorkersCaller(workers.worker_callers(run), workers.bridge_caller(run))
    case = insert_ids(run.case, prepare(run.case, caller))
    ask = partial(caller.call, case["call"], plain(case.get("params", {})), token_of(case))
    outcome = ask()
    if any(step["call"] in INTENT_CALLS for step in case.get("before", ())) and not is_expected(case, outcome):
        # Other workers are notified of intents a moment after their commit.
        wait_until(lambda: is_expected(case, ask()), "all workers know the intents")
        return
    judge(case, outcome)


def is_expected(case: Case, outcome: Outcome) -> bool:
    """Return True if an outcome is what a case expects."""
    try:
        judge(case, outcome)
    except AssertionError:
        return False
    return True


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[GrpcCaller, JsonRpcCaller]]:
    """A caller over each transport of one server, whose journal holds several decisions."""
    case = {"settings": {"cstp": {"query": {"min_score": 0}}}, "decisions": JOURNAL}
    wanted = settings_of(case, tmp_path_factory.mktemp("both"))
    with running(wanted) as app, bridging(wanted, app.target) as url:
        over_grpc, over_jsonrpc = GrpcCaller(app.target), JsonRpcCaller(url)
        prepare(case, over_grpc)
        yield over_grpc, over_jsonrpc
        over_grpc.close()
        over_jsonrpc.close()


@pytest.mark.parametrize(("query", "count"), QUERIES)
def test_a_query_has_the_same_answer_over_both_transports(
    query: dict[str, Any], count: int, both: tuple[GrpcCaller, JsonRpcCaller]
) -> None:
    over_grpc, over_jsonrpc = (caller.call("cstp.queryDecisions", query).result for caller in both)
    assert over_grpc is not None
    assert over_jsonrpc is not None
    assert len(over_jsonrpc["decisions"]) == count
    assert spelled(over_grpc) == spelled(over_jsonrpc)


def spelled(result: dict[str, Any]) -> str:
    """Return a result as text, which tells 1 from 1.0, without the time that it took."""
    return json.dumps({**result, "queryTimeMs": None}, indent=1, sort_keys=True)
