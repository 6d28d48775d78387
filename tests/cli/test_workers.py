"""serve with several processes on one port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from cstp_grpc.cli.process_supervision import PortReservation, PortReservationFailed
from cstp_grpc.client import CstpClient
from cstp_grpc.contract.enums import Permission
from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path
from tests.cli.conftest import Invoke, Server, enter_home
from tests.cli.serving import BOUND, ENVIRONMENT, READY, Process, answers, get, started
from tests.databases import PostgresServer, unique_name
from tests.harness import GrpcCaller, JsonRpcCaller, Outcome, running, settings
from tests.platform.telemetry.scraping import scrape
from tests.waiting import wait_until

TOKEN = "a-token-for-the-workers"
TESTER = {"name": "tester", "token": TOKEN, "permissions": sorted(each.value for each in Permission)}
"""The settings of an agent who may do everything."""
LIMITED = "cstp.getCalibration"
"""The method that the rate limits of the workers which tests share are about."""
WORKER = "cstp_grpc.server.worker"
BRIDGE = " bridge "
SCRAPER = "a-token-of-prometheus"


@contextmanager
def serving(
    home: Path, number: int = 2, *flags: str, environment: Mapping[str, str] = ENVIRONMENT, **sections: Any
) -> Iterator[Process]:
    """Run several workers for an agent who may do everything."""
    (home / "cstp.yaml").write_text(yaml.safe_dump({"auth": {"tokens": [TESTER]}, "data_dir": "var", **sections}))
    command = ("serve", "--config", "cstp.yaml", "--workers", str(number), *flags)
    with started(*command, environment=environment) as process:
        process.wait_for(READY)
        yield process


def children(process: Process, text: str) -> list[int]:
    """Return the process ids of a command's children whose command lines hold a text."""
    return children_of([process.popen.pid], text)


def children_of(parents: Sequence[int], text: str) -> list[int]:
    """Return the process ids of the children of processes whose command lines hold a text."""
    found = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(maxsplit=2) for line in found.splitlines()]
    return [int(pid) for pid, parent, command in rows if int(parent) in parents and text in command]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ok(outcome: Outcome) -> dict[str, Any]:
    assert outcome.result is not None, outcome
    return outcome.result


def connect(target: str) -> GrpcCaller:
    """Return a caller with a connection of its own."""
    caller = GrpcCaller(target)
    caller.close()
    caller.channel = grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)])
    return caller


def call_anew(target: str, method: str, token: str, **params: Any) -> Outcome:
    """Call over a connection of its own."""
    with closing(connect(target)) as caller:
        return caller.call(method, params, token)


def check(target: str, token: str = TOKEN) -> Outcome:
    """Check guardrails over a connection of its own."""
    return call_anew(target, "cstp.checkGuardrails", token, action={"description": "tidy up"})


@pytest.fixture(scope="module")
def developer_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Process, Path]]:
    """Two workers and two bridges of a developer's server, and the folder that they were started in."""
    folder = tmp_path_factory.mktemp("workers")
    (folder / "rules.yaml").write_text(packaged_rulebook_path("default").read_text())
    sections = {
        "cstp": {"guardrails": {"config_path": "rules.yaml"}},
        "rate_limits": {"methods": {LIMITED: "10/hour"}},
        "metrics": {"port": 0, "bridge_port": 0, "token": SCRAPER},
        "logging": {"calls": "json"},
    }
    (folder / "cstp.yaml").write_text(yaml.safe_dump(sections))
    with pytest.MonkeyPatch.context() as patched:
        enter_home(patched, folder)
        with started("serve", "--dev", "--config", "cstp.yaml", "--workers", "2") as process:
            process.wait_for(READY)
            yield process, folder
            assert process.end(signal.SIGINT) == 0
            process.wait_for("Stopped.")


@pytest.fixture
def workers(developer_workers: tuple[Process, Path], home: Path, monkeypatch: pytest.MonkeyPatch) -> Process:
    """Workers that tests share, in whose folder commands are run."""
    process, folder = developer_workers
    enter_home(monkeypatch, folder)
    return process


def test_workers_serve_one_journal_on_one_port_over_all_transports(workers: Process, invoke: Invoke) -> None:
    assert workers.value("workers") == "2"
    assert len(children(workers, WORKER)) == len(children(workers, BRIDGE)) == 2
    target, url = workers.value("gRPC"), workers.value("JSON-RPC").removesuffix("/cstp")
    # A developer gets examples and a token once, and finds the server by both its names.
    assert "with 60 example decisions" in workers.value("data")
    token = Path("var/dev-token").read_text()
    for agent in ("developer", "developer-http"):
        listed = invoke("list", "--limit", "100", "--agent", agent, "--json")
        assert listed.exit_code == 0, listed.output
        assert listed.stdout.count('"id"') == 60

    with closing(connect(target)) as caller:
        recorded = ok(caller.call("cstp.recordDecision", {"decision": {"title": "Keep sessions in Redis"}}, token))

    def find(number: int) -> bool:
        caller = connect(target) if number % 2 else JsonRpcCaller(url)
        with closing(caller):
            query = {"query": "keep sessions in redis", "limit": 1}
            found = ok(caller.call("cstp.queryDecisions", query, token))["decisions"]
        return [decision["id"] for decision in found] == [recorded["decision"]["id"]]

    for number in range(20):
        wait_until(partial(find, number), "every worker finds what one of them recorded")
    assert get(f"{url}/health") == {"status": "ok", "rulebooks": "ok"}
    assert answers(workers.value("A2A").split(", gRPC ")[1])


def test_every_worker_reads_rulebooks_again_at_a_hangup(workers: Process) -> None:
    before = children(workers, WORKER)
    workers.popen.send_signal(signal.SIGHUP)
    said = [workers.wait_for("the rulebooks are those in force, default@") for _ in before]
    assert {f"worker {number}" in " ".join(said) for number in (1, 2)} == {True}

    rules, token = Path("rules.yaml"), Path("var/dev-token").read_text()
    rules.write_text(rules.read_text().replace("name: default", "name: changed"))
    workers.popen.send_signal(signal.SIGHUP)
    said = [workers.wait_for("are in force instead of default@") for _ in before]
    assert {f"worker {number}" in " ".join(said) for number in (1, 2)} == {True}
    versions = {ok(check(workers.value("gRPC"), token))["ruleSetVersion"] for _ in range(8)}
    assert [version.partition("@")[0] for version in versions] == ["changed"]
    assert children(workers, WORKER) == before


def metrics_url(workers: Process) -> str:
    """Return where the metrics of the servers are."""
    return workers.value("metrics").partition(", bridge ")[0]


def test_the_supervisor_tells_the_metrics_of_every_bridge(workers: Process) -> None:
    url = workers.value("metrics").partition(", bridge ")[2]
    for _ in range(4):
        with pytest.raises(urllib.error.HTTPError) as raised:
            get(f"{workers.value('JSON-RPC')}/nowhere")
        raised.value.close()
    wait_until(
        lambda: scrape(url, SCRAPER).value("cstp_bridge_call_seconds_count", surface="other") >= 4, "are counted"
    )
    scraped = scrape(url, SCRAPER)
    assert [scraped.value("cstp_worker_up", worker=number) for number in ("1", "2")] == [1, 1]
    assert scraped.labels("cstp_bridge_upstream_state", "worker") == {"1", "2"}


def test_the_supervisor_tells_the_metrics_of_every_worker(workers: Process) -> None:
    target, token, url = workers.value("gRPC"), Path("var/dev-token").read_text(), metrics_url(workers)
    labels = {"method": "cstp.checkGuardrails", "agent_class": "agent", "status": "OK"}

    def read() -> list[float]:
        scraped = scrape(url, SCRAPER)
        return [scraped.value("cstp_call_seconds_count", worker=number, **labels) for number in ("1", "2")]

    before = read()
    for _ in range(16):
        ok(check(target, token))
    grown = [after - earlier for after, earlier in zip(read(), before, strict=True)]
    assert sum(grown) == 16
    scraped = scrape(url, SCRAPER)
    assert [scraped.value("cstp_worker_up", worker=number) for number in ("1", "2")] == [1, 1]
    # What all of them would read of the database, one of them reads.
    assert {sample.labels["worker"] for sample in scraped.families["cstp_chat_sessions_active"].samples} == {"1"}
    with pytest.raises(urllib.error.HTTPError) as raised:
        scrape(url)
    raised.value.close()
    assert raised.value.code == 401


def test_a_worker_writes_a_line_for_each_call(workers: Process) -> None:
    ok(check(workers.value("gRPC"), Path("var/dev-token").read_text()))
    line = json.loads(workers.wait_for('"method":"cstp.checkGuardrails"'))
    assert line["process"] in ("worker 1", "worker 2")
    assert (line["agent"], line["status"], line["verdict"]) == ("developer", "OK", "allowed")


def test_a_rate_limit_holds_for_all_workers_together(workers: Process) -> None:
    target, token = workers.value("gRPC"), Path("var/dev-token").read_text()
    with ThreadPoolExecutor(8) as callers:
        outcomes = list(callers.map(lambda _: call_anew(target, LIMITED, token), range(30)))
    assert sum(outcome.result is not None for outcome in outcomes) == 10
    assert {outcome.reason for outcome in outcomes if outcome.result is None} == {"RATE_LIMITED"}


@pytest.mark.slow
def test_a_bridge_that_is_killed_is_replaced_on_the_same_ports(home: Path) -> None:
    with serving(home) as process:
        url = process.value("JSON-RPC").removesuffix("/cstp")
        os.kill(children(process, BRIDGE)[0], signal.SIGKILL)
        process.wait_for("ended with code -9 and is started again")
        assert get(f"{url}/health") == {"status": "ok", "rulebooks": "ok"}
        assert url in process.wait_for("The bridge was started again")
        assert len(children(process, BRIDGE)) == 2
        assert process.end() == 0


@pytest.mark.slow
def test_workers_serve_one_postgresql(home: Path, postgres: PostgresServer) -> None:
    name = unique_name()
    postgres.create(name, migrated=False)
    try:
        with serving(home, 2, "--no-bridge", storage={"url": postgres.url(name)}) as process:
            target = process.value("gRPC")
            with closing(connect(target)) as caller:
                ok(caller.call("cstp.recordDecision", {"decision": {"title": "Keep sessions in Redis"}}, TOKEN))

            def find() -> bool:
                with closing(connect(target)) as caller:
                    found = ok(caller.call("cstp.queryDecisions", {"query": "sessions in redis"}, TOKEN))
                return len(found["decisions"]) == 1

            for _ in range(8):
                wait_until(find, "every worker finds what one of them recorded")
            assert process.end() == 0
    finally:
        postgres.drop(name)


@pytest.mark.slow
def test_a_worker_that_is_killed_is_replaced_and_no_call_waits_for_it(home: Path) -> None:
    rules = home / "rules.yaml"
    rules.write_text(packaged_rulebook_path("default").read_text())
    guardrails = {"config_path": "rules.yaml"}
    with serving(home, 2, cstp={"guardrails": guardrails}, serve={"bridge_workers": 1}) as process:
        assert len(children(process, BRIDGE)) == 1
        target = process.value("gRPC")
        before = children(process, WORKER)
        # A worker that starts while they are invalid judges by those that were loaded last.
        rules.write_text(rules.read_text().replace("name: default", "name: changed"))
        for _ in before:
            process.wait_for("are in force instead of default@")
        rules.write_text("nonsense")
        with closing(JsonRpcCaller(process.value("JSON-RPC").removesuffix("/cstp"))) as bridged:
            os.kill(before[0], signal.SIGKILL)
            process.wait_for("ended with code -9 and is started again")
            # As long as there is one alone, new connections are its.
            with ThreadPoolExecutor(8) as callers:
                for outcome in callers.map(check, [target] * 40):
                    ok(outcome)

            def is_well() -> bool:
                return bridged.call("cstp.checkGuardrails", {"action": {"description": "x"}}, TOKEN).result is not None

            wait_until(is_well, "the bridge calls the worker that is left")
            process.wait_for("serves again")
            ok(bridged.call("cstp.checkGuardrails", {"action": {"description": "x"}}, TOKEN))
            for _ in range(8):
                assert ok(check(target))["ruleSetVersion"].startswith("changed@")
        after = children(process, WORKER)
        assert len(after) == 2
        assert before[1] in after
        assert before[0] not in after
        assert process.end() == 0


@pytest.mark.slow
def test_port_and_data_folder_are_in_use_as_long_as_a_worker_lives(home: Path, invoke: Invoke) -> None:
    with serving(home, 2) as process:
        port = process.value("gRPC").rpartition(":")[2]
        for number in ("1", "2"):
            environment = {**ENVIRONMENT, "CSTP_GRPC__PORT": port, "CSTP_DATA_DIR": "other"}
            result = invoke("serve", "--dev", "--workers", number, env=environment)
            assert result.exit_code == 1
            assert "is the port taken? Set grpc.port to another" in result.stderr
        result = invoke("serve", "--config", "cstp.yaml", env=ENVIRONMENT)
        assert result.exit_code == 1
        assert "is in use by" in result.stderr

        pids = children(process, "")
        assert len(pids) == 4
        stopped = children(process, WORKER)[0]
        os.kill(stopped, signal.SIGSTOP)
        process.end(signal.SIGKILL)
        result = invoke("serve", "--config", "cstp.yaml", env=ENVIRONMENT)
        os.kill(stopped, signal.SIGCONT)
        assert "is in use by" in result.stderr
        wait_until(lambda: not any(map(is_running, pids)), "all children end")


PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"cstp": {"guardrails": {"config_path": "absent.yaml"}}}, "absent.yaml:1: rulebook: cannot be read"),
    ({"rate_limits": {"methods": {"cstp.nothing": "1/minute"}}}, "rate_limits.methods: there is no method"),
    ({"storage": {"url": "mysql://x"}}, "storage.url: must begin with"),
    ({"grpc": {"tls": {"certificate": "absent.pem", "key": "absent.pem"}}}, "grpc.tls.certificate"),
]
"""Settings with which a server cannot start, and what it says about them."""


def write_settings(home: Path, sections: Mapping[str, Any]) -> None:
    """Write the settings of a server with one agent."""
    tokens = [{"name": "tester", "token": TOKEN}]
    (home / "cstp.yaml").write_text(yaml.safe_dump({"auth": {"tokens": tokens}, "data_dir": "var", **sections}))


@pytest.mark.parametrize(("sections", "problem"), PROBLEMS)
def test_what_keeps_a_server_from_starting_is_told_once(
    home: Path, invoke: Invoke, sections: dict[str, Any], problem: str
) -> None:
    write_settings(home, sections)
    result = invoke("serve", "--config", "cstp.yaml", "--no-bridge", env=ENVIRONMENT)
    assert result.exit_code == 1
    assert result.stderr.count(problem) == 1


@pytest.mark.slow
def test_what_keeps_workers_from_starting_is_told_once(home: Path) -> None:
    sections, problem = PROBLEMS[0]
    write_settings(home, sections)
    command = ("serve", "--config", "cstp.yaml", "--workers", "2", "--no-bridge")
    with started(*command) as process:
        process.wait_for(problem)
        assert process.popen.wait(BOUND) == 1
        with pytest.raises(AssertionError, match="it ended"):
            process.wait_for(problem)


def test_a_port_that_is_taken_is_named(home: Path, server: Server, invoke: Invoke) -> None:
    environment = {**ENVIRONMENT, "CSTP_GRPC__PORT": str(server.app.port)}
    result = invoke("serve", "--dev", "--workers", "2", env=environment)
    assert result.exit_code == 1
    assert f":{server.app.port}: " in result.stderr
    assert "Set grpc.port to another" in result.stderr


def test_a_reserved_port_is_for_those_who_share_it() -> None:
    reservation = PortReservation("127.0.0.1", 0, "grpc.port")
    with socket.socket() as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", reservation.port))
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", reservation.port))
        other.listen()
        with pytest.raises(PortReservationFailed, match="Set grpc\\.port to another"):
            PortReservation("127.0.0.1", reservation.port, "grpc.port")
    reservation.release()


@pytest.mark.parametrize("number", ["0", "257", "many", "1.5"])
def test_a_number_of_workers_that_makes_no_sense_is_refused(invoke: Invoke, number: str) -> None:
    result = invoke("serve", "--dev", "--workers", number, env=ENVIRONMENT)
    assert result.exit_code == 2
    assert "must be `auto` or a whole number from 1 to 256" in result.stderr


@pytest.mark.slow
def test_rate_limits_hold_also_for_a_worker_that_takes_the_place_of_another(home: Path) -> None:
    limits = {"methods": {"cstp.checkGuardrails": "10/hour"}, "overall": "25/hour"}
    with serving(home, 2, "--no-bridge", rate_limits=limits) as process:
        target = process.value("gRPC")
        with ThreadPoolExecutor(8) as callers:
            outcomes = list(callers.map(check, [target] * 30))
        assert sum(outcome.result is not None for outcome in outcomes) == 10
        assert {outcome.reason for outcome in outcomes if outcome.result is None} == {"RATE_LIMITED"}
        # A worker that takes the place of another knows what was counted before.
        os.kill(children(process, WORKER)[0], signal.SIGKILL)
        process.wait_for("serves again")
        assert {check(target).reason for _ in range(8)} == {"RATE_LIMITED"}
        listed = [call_anew(target, "cstp.listDecisions", TOKEN).reason for _ in range(20)]
        assert listed == [None] * 15 + ["RATE_LIMITED"] * 5
        assert process.end() == 0


@pytest.mark.slow
def test_calls_in_progress_end_before_the_workers_do(home: Path) -> None:
    with serving(home, 2, "--no-bridge") as process:
        target = process.value("gRPC")
        stopped = threading.Event()
        recorded: list[str] = []

        def record() -> None:
            with CstpClient(f"grpc://{target}", TOKEN) as client:
                while not stopped.is_set():
                    recorded.append(client.record_decision("Count to ten").id)

        with ThreadPoolExecutor(4) as callers:
            recording = [callers.submit(record) for _ in range(4)]
            wait_until(lambda: len(recorded) > 20, "decisions are recorded")
            process.popen.terminate()
            stopped.set()
            assert process.popen.wait(BOUND) == 0
            for each in recording:
                each.exception(BOUND)
    with running(settings(home / "var", auth={"tokens": [TESTER]})) as app, CstpClient(app.url, TOKEN) as client:
        assert set(recorded) <= {decision.id for decision in client.list_decisions()}


@pytest.mark.slow
def test_every_worker_finds_every_decision_whichever_dies(home: Path) -> None:
    with serving(home, 2, "--no-bridge") as process:
        target = process.value("gRPC")

        def find(title: str) -> bool:
            found = ok(call_anew(target, "cstp.queryDecisions", TOKEN, query=title, limit=1))["decisions"]
            return [decision["title"] for decision in found] == [title]

        def record(title: str) -> None:
            ok(call_anew(target, "cstp.recordDecision", TOKEN, decision={"title": title}))

        titles = [f"Decide on matter number {word}" for word in ("one", "two", "three", "four", "five")]
        for title in titles:
            record(title)
        for title in titles:
            wait_until(lambda title=title: all(find(title) for _ in range(4)), "every worker finds it")  # type: ignore[misc]
        os.kill(children(process, WORKER)[0], signal.SIGKILL)
        process.wait_for("serves again")
        titles.append("Decide on a sixth matter")
        record(titles[-1])
        for title in titles:
            wait_until(lambda title=title: all(find(title) for _ in range(4)), "every worker finds it")  # type: ignore[misc]
        assert process.end() == 0
