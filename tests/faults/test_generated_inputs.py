"""Inputs that are made from the contract in numbers: each face answers all of them, with no error of its own.

`CSTP_GENERATED_INPUTS` is how many inputs each face gets, and `CSTP_SEED` the seed they are made from.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from cstp_grpc.contract.methods import RpcMethod, contract_methods
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import Action, RuleSet
from cstp_grpc.core.guardrails.parsing import parse_rulebook
from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path
from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc
from cstp_grpc.modules.intent_layer.node_document import parse_node
from tests.bench.proc import memory_of
from tests.bridge.a2a.operation_params import PARAMS
from tests.cli.serving import BOUND, Process, bridge_of
from tests.core.guardrails.rulebooks import content, rule
from tests.faults.contract_inputs import InputGenerator
from tests.faults.grpc_inputs import GrpcMethod, a2a_grpc_methods, call_generated, contract_grpc_methods, create_tasks
from tests.faults.load import forbidden_action, reveals_internals
from tests.faults.serving import serving, write_settings
from tests.faults.usage import a2a_target, has_no_streams
from tests.test_kill import METADATA, TOKEN
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

logger = logging.getLogger(__name__)

COUNT = int(os.environ.get("CSTP_GENERATED_INPUTS", "10000"))
SEED = int(os.environ.get("CSTP_SEED", "1"))
CALLERS = 4
WARM_UP = 0.2
"""The share of the inputs after which memory is measured first."""
GROWTH = 0.01
"""MB that a process may grow for each input: a tenth of them is recorded, with vectors and in memory."""
LEAST_GROWTH = 60.0
"""MB that a process may grow whatever the number: caches and pools that fill up."""
TASKS = 5
"""Tasks that exist before inputs name them."""
INTERNAL_ERROR = -32603
MOST_VALUES = 15
TRACE_LINES = 60
MOST_SHOWN = 30


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """A server with a bridge, which all faces share: one does not harm another."""
    settings = write_settings(
        tmp_path_factory.mktemp("generated"), metrics={"port": 0}, a2a={"push": {"allow_loopback": True}}
    )
    with serving(settings, "--bridge") as process:
        yield process


class Watched:
    """Memory and output of a server's processes while they are called."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._pids = {"server": process.popen.pid, "bridge": bridge_of(process.popen.pid)}
        self._before: dict[str, float] = {}

    def measure(self) -> None:
        """Note how much memory there is in use before the inputs."""
        self._before = self._resident()

    def assert_sound(self, face: str, count: int, outcomes: Counter[Any]) -> None:
        """Assert that it still blocks what is forbidden, logged no stack trace and did not grow beyond bounds."""
        wrong = [outcome for outcome in outcomes if str(outcome).startswith("WRONG")]
        assert wrong[:MOST_SHOWN] == [], f"{len(wrong)} wrong answers"
        grown = {name: now - self._before[name] for name, now in self._resident().items()}
        logger.info("%s: %d inputs of seed %d, %s, grown by %s MB", face, count, SEED, dict(outcomes), grown)
        with grpc.insecure_channel(self._process.value("gRPC")) as channel:
            request = cstp_pb2.CheckGuardrailsRequest(action=forbidden_action())
            stub = cstp_pb2_grpc.CstpServiceStub(channel)
            assert not stub.CheckGuardrails(request, metadata=(METADATA,), timeout=BOUND).allowed
        lines = list(self._process.lines.queue)
        begins = [number for number, line in enumerate(lines) if "Traceback" in line]
        assert not begins, "".join(lines[begins[0] : begins[0] + TRACE_LINES])
        assert max(grown.values()) < LEAST_GROWTH + GROWTH * count

    def _resident(self) -> dict[str, float]:
        found = {name: memory_of(pid) for name, pid in self._pids.items()}
        return {name: memory.resident for name, memory in found.items() if memory is not None}


@pytest.fixture
def watched(process: Process) -> Watched:
    return Watched(process)


def unary_methods() -> list[RpcMethod]:
    return [method for method in contract_methods().values() if method.public and not method.server_streaming]


def shares(count: int) -> list[tuple[int, int]]:
    """Return a seed and a number of inputs for each caller."""
    return [(SEED * 1000 + caller, count // CALLERS) for caller in range(CALLERS)]


def call_methods(target: str, methods: Sequence[GrpcMethod], share: tuple[int, int]) -> Counter[str]:
    """Call methods at random over a connection, with a share of the inputs, and count what became of the calls."""
    generator, outcomes = InputGenerator(share[0]), Counter[str]()
    with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        for _ in range(share[1]):
            outcomes[call_generated(channel, generator.random.choice(methods), generator)] += 1
    return outcomes


def test_protobuf_over_grpc(process: Process, watched: Watched) -> None:
    methods = [method for method in contract_grpc_methods() if not method.is_streaming]
    outcomes = run(partial(call_methods, process.value("gRPC"), methods), watched)
    watched.assert_sound("protobuf over gRPC", COUNT, outcomes)


def test_streams_over_grpc(process: Process, watched: Watched) -> None:
    methods = [method for method in contract_grpc_methods() if method.is_streaming]
    outcomes = run(partial(call_methods, process.value("gRPC"), methods), watched)
    watched.assert_sound("streams over gRPC", COUNT, outcomes)
    wait_until(lambda: has_no_streams(process), "all streams have ended")


def test_a2a_over_grpc(process: Process, watched: Watched) -> None:
    target = a2a_target(process)
    methods = a2a_grpc_methods(create_tasks(target, TASKS))
    outcomes = run(partial(call_methods, target, methods), watched)
    watched.assert_sound("A2A over gRPC", COUNT, outcomes)


def run(call: Any, watched: Watched) -> Counter[str]:
    """Have all callers call, a share of the inputs before memory is measured and all of them after it."""
    with ThreadPoolExecutor(CALLERS) as threads:
        list(threads.map(call, shares(int(COUNT * WARM_UP))))
        watched.measure()
        return sum(threads.map(call, shares(COUNT)), Counter[str]())


def post(connection: http.client.HTTPConnection, path: str, body: bytes, method: str = "POST") -> tuple[int, bytes]:
    """Send a body as an agent and return status and body of the answer."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}", "A2A-Version": "1.0"}
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    return answer.status, answer.read()


def connect(process: Process) -> http.client.HTTPConnection:
    parts = urlsplit(process.value("JSON-RPC"))
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=BOUND)


def outcome_of(status: int, answer: bytes, body: bytes) -> str:
    """Return the code of an answer, marked WRONG if it is an error of the server's own or tells internals."""
    found = json.loads(answer) if answer else {}
    error = found.get("error") if isinstance(found, dict) else None
    code, message = (error["code"], error["message"]) if isinstance(error, dict) else (status, "")
    is_own = code in (INTERNAL_ERROR, 500) or (status >= 500 and status != 503)
    return f"WRONG {status} {answer!r} {body!r}" if is_own or reveals_internals(message) else str(code)


def test_json_rpc(process: Process, watched: Watched) -> None:
    def call(share: tuple[int, int]) -> Counter[str]:
        generator, outcomes = InputGenerator(share[0]), Counter[str]()
        methods = unary_methods()
        connection = connect(process)
        for _ in range(share[1]):
            method = generator.random.choice(methods)
            request = {"jsonrpc": "2.0", "id": 1, "method": method.name, "params": generator.params(method)}
            if generator.random.random() < 0.1:
                request = generator.mutated_json(request)
            body = json.dumps(request).encode()
            if generator.random.random() < 0.2:
                body = generator.mutated_bytes(body)
            status, answer = post(connection, "/cstp", body)
            outcomes[outcome_of(status, answer, body)] += 1
        connection.close()
        return outcomes

    outcomes = run(call, watched)
    watched.assert_sound("JSON-RPC", COUNT, outcomes)


def test_a2a(process: Process, watched: Watched) -> None:
    def call(share: tuple[int, int]) -> Counter[str]:
        generator, outcomes = InputGenerator(share[0]), Counter[str]()
        connection = connect(process)
        operations = [name for name in PARAMS if "Stream" not in name and "Subscribe" not in name]
        for _ in range(share[1]):
            operation = generator.random.choice(operations)
            params = generator.mutated_json(generator.random.choice(PARAMS[operation]))
            request: Any = {"jsonrpc": "2.0", "id": 1, "method": operation, "params": params}
            path = "/a2a"
            if generator.random.random() < 0.2:
                path, request = "/a2a/v1/message:send", params
            body = json.dumps(request).encode()
            if generator.random.random() < 0.2:
                body = generator.mutated_bytes(body)
            status, answer = post(connection, path, body)
            outcomes[outcome_of(status, answer, body)] += 1
        connection.close()
        return outcomes

    outcomes = run(call, watched)
    watched.assert_sound("A2A", COUNT, outcomes)


CEL_PARTS = (
    *("context.flag", "context.count", "context.name", "context.files", "context.change", "action.category", "true"),
    *("action.stakes", "stakes.high", "action.confidence", "1", "-1", "0.5", "'a'", "''", "null", "[]", "{}", "b'a'"),
    *("has(context.name)", "has(context.change.a)", "size(", "duration('1h')", "timestamp('x')", "9223372036854775807"),
)
CEL_OPERATORS = (
    "&&",
    "||",
    "==",
    "!=",
    "<",
    ">=",
    "+",
    "-",
    "*",
    "/",
    "%",
    " in ",
    "?",
    ":",
    ".",
    ",",
    "[",
    "]",
    ")",
    "(",
)
CEL_CONDITIONS = (
    *("context.flag", "context.count > 10", "context.name == 'main'", "context.files.exists(f, f == X)", "has(X)"),
    *("X == X", "X != 'a'", "X in context.files", "!(X)", "X ? X : X", "size(X) > 1", "X.startsWith('a')", "X > X"),
    *("context.files.map(f, f + X).size() < 3", "context.change.a == X", "action.confidence < X", "X.matches('^a+$')"),
    *("X + X == X", "X / X > 1", "context.files[X] == 'a'", "context.name.split(X).size() > 0", "X || context.flag"),
)
CEL_INPUTS = {
    "flag": {"type": "bool"},
    "count": {"type": "number"},
    "name": {"type": "string"},
    "files": {"type": "list"},
    "change": {"type": "map"},
}
CONTEXTS: tuple[dict[str, Any], ...] = (
    {},
    {"flag": True, "count": 3, "name": "main", "files": ["a"], "change": {"a": "b"}},
    {"flag": "yes", "count": float("nan"), "name": 3, "files": {}, "change": []},
)


def test_cel() -> None:
    generator, outcomes = InputGenerator(SEED), Counter[str]()
    for _ in range(COUNT):
        source = " && ".join(
            generator.random.choice(CEL_CONDITIONS).replace("X", generator.random.choice(CEL_PARTS))
            for _ in range(generator.random.choice((1, 1, 2, 3)))
        )
        if generator.random.random() < 0.3:
            words = source.split(" ")
            words.insert(generator.random.randint(0, len(words)), generator.random.choice(CEL_OPERATORS))
            source = " ".join(words)
        if generator.random.random() < 0.2:
            source = generator.mutated_bytes(source.encode()).decode("utf-8", "replace")
        outcomes[judged(source)] += 1
    logger.info("CEL: %d inputs of seed %d, %s", COUNT, SEED, dict(outcomes))
    assert min(outcomes.values()) > 0


def judged(source: str) -> str:
    """Return what became of a rule with a condition, none of whose errors allows an action."""
    parsed = parse_rulebook("book.yaml", content([rule("r", source)], CEL_INPUTS).encode())
    if parsed.rulebook is None:
        assert parsed.problems
        return "refused"
    evaluator = GuardrailEvaluator(RuleSet((parsed.rulebook,)))
    for context in CONTEXTS:
        verdict = evaluator.evaluate(Action("do it", context=context))
        assert verdict.allowed == (not verdict.violations)
        assert all(not reveals_internals(violation.message) for violation in verdict.violations), source
    return "evaluated"


def test_rulebooks() -> None:
    generator, outcomes = InputGenerator(SEED), Counter[str]()
    good = packaged_rulebook_path("default").read_text()
    parts = [
        *good.split("\n"),
        "&a",
        "*a",
        "<<: *a",
        "!!python/object:os.system x",
        "? [a]: b",
        "- - - -",
        "%YAML 1.1",
        "---",
    ]
    for _ in range(COUNT // 10):
        text = generator.mutated_lines(good, parts)
        parsed = parse_rulebook("book.yaml", text.encode("utf-8", "replace"))
        assert (parsed.rulebook is None) == bool(parsed.problems), text
        outcomes["refused" if parsed.problems else "accepted"] += 1
    logger.info("rulebooks: %d inputs of seed %d, %s", COUNT // 10, SEED, dict(outcomes))


def test_nodes() -> None:
    generator, outcomes = InputGenerator(SEED), Counter[int]()
    good = Path("AGENTS.md").read_text()
    parts = [
        *good.split("\n"),
        "```",
        "~~~~",
        "<!--",
        "-->",
        "# ",
        "## Contracts",
        "\t- x",
        "> ",
        "| a |",
        "[x]: y",
        "***",
    ]
    for _ in range(COUNT):
        text = generator.mutated_lines(good[: generator.random.randint(0, 3000)], parts)
        document = parse_node(text, "AGENTS.md")
        sections = document.sections()
        outcomes[len(list(sections))] += 1
    logger.info("nodes: %d inputs of seed %d, %s", COUNT, SEED, dict(outcomes.most_common(MOST_VALUES)))
