"""A server whose rulebooks change while it serves."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.core.guardrails.rulebooks import content, rule, write
from tests.harness import TIMEOUT, GrpcCaller, running, settings
from tests.waiting import wait_until

THREADS = 32
ROUNDS = 6
CHECK = {"action": {"description": "do it"}}


def book(number: int) -> str:
    """Return a rulebook whose version and only rule have a number."""
    return content([rule(f"rule-{number}", "true")]).replace('"version": "1"', f'"version": "{number}"')


@contextmanager
def serving(folder: Path, rules: Path) -> Iterator[GrpcCaller]:
    """Run a server with these rules, and yield what calls it."""
    with running(settings(folder, cstp={"guardrails": {"config_path": rules}})) as app:
        caller = GrpcCaller(app.target)
        try:
            yield caller
        finally:
            caller.close()


def result(caller: GrpcCaller, method: str, params: dict[str, Any]) -> dict[str, Any]:
    outcome = caller.call(method, params)
    assert outcome.result is not None, outcome
    return outcome.result


def version_number(version: str) -> str:
    """Return the version of the rulebook that the version of a rule set names."""
    return version.removeprefix("book@").partition("+")[0]


def assert_consistent(verdict: dict[str, Any]) -> None:
    """Check that a verdict has the violations of the version that it names."""
    number = version_number(verdict["ruleSetVersion"])
    assert [each["guardrailId"] for each in verdict["violations"]] == [f"rule-{number}"]


def ask(caller: GrpcCaller) -> None:
    """Ask in every way for which rules matter, and check that each answer is of one version."""
    assert_consistent(result(caller, "cstp.checkGuardrails", CHECK))
    announced = result(caller, "cstp.announceIntent", {"intent": "do it", "agent": {"id": "alice"}})
    assert_consistent(announced["guardrailStatus"])
    batch = result(caller, "cstp.batchCheckGuardrails", {"actions": [CHECK["action"]] * 3})
    verdicts = [each["verdict"] for each in batch["results"]]
    for verdict in verdicts:
        assert_consistent(verdict)
    assert len({verdict["ruleSetVersion"] for verdict in verdicts}) == 1
    listed = result(caller, "cstp.listGuardrails", {})
    assert [each["id"] for each in listed["guardrails"]] == [f"rule-{version_number(listed['ruleSetVersion'])}"]
    rulebook = result(caller, "cstp.getRulebook", {})
    assert rulebook["rulebooks"][0]["version"] == version_number(rulebook["ruleSetVersion"])
    assert result(caller, "cstp.getAccess", {})["guardrails"]["count"] == 1


@pytest.mark.slow
def test_every_answer_to_many_threads_is_of_the_version_that_it_names(tmp_path: Path) -> None:
    path = write(tmp_path / "rules.yaml", book(0))
    done = threading.Event()

    def ask_until_done(caller: GrpcCaller) -> int:
        asked = 0
        while not done.is_set():
            ask(caller)
            asked += 1
        return asked

    with serving(tmp_path, path) as caller, ThreadPoolExecutor(THREADS) as pool:
        asking = [pool.submit(ask_until_done, caller) for _ in range(THREADS)]
        try:
            for number in range(1, ROUNDS):
                write(path.with_suffix(".new"), book(number)).replace(path)
                wait_until(lambda: current_number(caller) == str(number), "the new version is in force")  # noqa: B023
        finally:
            done.set()
        assert all(each.result() for each in asking)


def current_number(caller: GrpcCaller) -> str:
    return version_number(result(caller, "cstp.checkGuardrails", CHECK)["ruleSetVersion"])


def test_a_bad_edit_is_seen_by_all_who_look_and_changes_no_verdict(tmp_path: Path) -> None:
    path = write(tmp_path / "rules.yaml", book(0))
    with serving(tmp_path, path) as caller:
        assert "lastFailedLoad" not in result(caller, "cstp.getRulebook", {})
        assert rulebooks_are_well(caller)
        write(path, book(1).replace("block", "blok"))
        wait_until(lambda: not rulebooks_are_well(caller), "health tells of it")
        failed = result(caller, "cstp.getRulebook", {})
        assert failed["rulebooks"][0]["version"] == "0"
        assert failed["lastFailedLoad"]["problemCount"] == 1
        assert failed["lastFailedLoad"]["problems"][0] | {"line": 0} == {
            "file": "rules.yaml",
            "line": 0,
            "where": "rule-1",
            "reason": "`severity` must be one of block, warn, approve, not blok",
        }
        assert current_number(caller) == "0"

        write(path, book(2))
        wait_until(lambda: rulebooks_are_well(caller), "it is mended")
        assert "lastFailedLoad" not in result(caller, "cstp.getRulebook", {})
        assert current_number(caller) == "2"


def rulebooks_are_well(caller: GrpcCaller) -> bool:
    request = health_pb2.HealthCheckRequest(service="rulebooks")
    with grpc.insecure_channel(caller.target) as channel:
        status = health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT).status
    return bool(status == health_pb2.HealthCheckResponse.SERVING)


def test_two_servers_name_their_own_versions_while_a_change_is_rolled_out(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{name}.yaml", book(0)) for name in ("first", "second")]
    with serving(tmp_path / "one", paths[0]) as first, serving(tmp_path / "two", paths[1]) as second:
        write(paths[0], book(1))
        wait_until(lambda: current_number(first) == "1", "the first has the change")
        assert numbers([first, second]) == ["1", "0"]
        write(paths[1], book(1))
        wait_until(lambda: current_number(second) == "1", "the second has it too")


def numbers(callers: Sequence[GrpcCaller]) -> list[str]:
    return [current_number(caller) for caller in callers]
