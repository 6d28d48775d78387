"""The cases of the core and of the Intent Layer without a server, as alice and bob, who may do everything.

One case for each rpc, and with the slow tests one for each of its reasons: a case has a folder of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark.structures import ParameterSet

from tests.case_servers import CaseRun, RunCaller, assign_servers, read_case, shared_settings
from tests.case_setup import PROJECT, insert_ids, plain, prepare, settings_of, token_of
from tests.harness import provide_journal
from tests.server.local.callers import LocalCaller
from tests.test_cases import FILES, judge, kind_of_answer

SERVICES = ("cstp.", "intentLayer.")
LOCAL_AGENTS = {"alice", "bob"}
SERVER_SETTINGS = {"auth", "federation", "grpc", "liaison", "rate_limits"}
"""Settings of what there is only in a server."""


def needs_no_server(case: dict[str, Any]) -> bool:
    """Return whether a case is about calls, and callers, that there are without a server."""
    exchanges = [case, *case.get("before", [])]
    return (
        all(exchange["call"].startswith(SERVICES) for exchange in exchanges)
        and all(exchange.get("caller", "alice") in LOCAL_AGENTS for exchange in exchanges)
        and not SERVER_SETTINGS & set(case.get("settings", {}))
        and "grpc" in case.get("transports", ["grpc"])
        and case["call"] != "cstp.getAccess"
    )


def local_runs() -> Iterator[CaseRun]:
    """Yield one case for each rpc and reason."""
    chosen: dict[tuple[str, str], CaseRun] = {}
    for path in FILES:
        case = read_case(path)
        if needs_no_server(case):
            chosen.setdefault(kind_of_answer(case), CaseRun(f"{path.parent.name}/{path.stem}", case, "local"))
    yield from chosen.values()


RUNS = assign_servers(local_runs())


FIRST_OF_RPC = {run.case["call"]: run.name for run in reversed(RUNS)}


def parameter_of(run: CaseRun) -> ParameterSet:
    """Return a run as a parameter, marked as slow unless it is the first of its rpc."""
    is_first = FIRST_OF_RPC[run.case["call"]] == run.name
    return pytest.param(run, id=run.name, marks=() if is_first else pytest.mark.slow)


@pytest.mark.parametrize("run", [parameter_of(run) for run in RUNS])
def test_case_without_a_server(run: CaseRun, tmp_path: Path) -> None:
    case = run.case
    wanted = shared_settings([run], tmp_path)
    provide_journal(wanted)
    names = frozenset({PROJECT, *(token.name for token in settings_of(case, tmp_path).auth.tokens)})
    with closing(LocalCaller(wanted)) as local:
        caller = RunCaller(local, run.ending, names)
        case = insert_ids(case, prepare(case, caller))
        judge(case, caller.call(case["call"], plain(case.get("params", {})), token_of(case)))
