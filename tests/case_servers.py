"""Servers that cases share: one for each distinct setting.

Each run of a case has agents, tenants and a project of its own there, so that it finds nothing of the others: their
names have an ending, which is added to what the run sends and removed from what it is answered. A case that is about
all that a server holds says `alone: true` and has a server for itself.
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import SecretStr

from cstp_grpc.platform import config
from tests.case_setup import PROJECT, Caller, settings_of, write_project
from tests.harness import (
    TOKENS,
    GrpcCaller,
    HttpAnswer,
    JsonRpcCaller,
    Outcome,
    bridging,
    running,
    running_workers,
)

Case = dict[str, Any]

RUNS_PER_SERVER = 100
"""A refusal may name the agents of all tenants, and gRPC takes no more than 16 KiB of it."""


@dataclass(frozen=True)
class CaseRun:
    """A case over a transport. Runs with the same `server` share one, on which `ending` tells them apart."""

    name: str
    case: Case
    transport: str
    server: str = ""
    ending: str = ""


@functools.cache
def read_case(path: Path) -> Case:
    """Return the case in a file, which several modules read and none changes."""
    # The safe loader in C reads the same and takes a tenth of the time, which every process of the suite spends.
    case: Case = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    assert case["requirement"], path
    return case


def assign_servers(runs: Iterable[CaseRun]) -> list[CaseRun]:
    """Return the runs with their servers and endings, those of a server one after the other."""
    assigned = []
    sharing: Counter[str] = Counter()
    for run in runs:
        setting = setting_of(run)
        number = sharing[setting]
        sharing[setting] += 1
        ending = "" if run.case.get("alone") else f".c{number % RUNS_PER_SERVER:02}"
        assigned.append(replace(run, server=f"{setting} {number // RUNS_PER_SERVER}", ending=ending))
    return sorted(assigned, key=lambda run: run.server)


def setting_of(run: CaseRun) -> str:
    """Return the setting that runs on one server have in common.

    What nodes of a project say is found by all agents, so that projects are among themselves.
    """
    case = run.case
    alone = run.name if case.get("alone") else None
    return json.dumps([alone, case.get("settings"), case.get("rulebook"), "project" in case], sort_keys=True)


def shared_settings(runs: Sequence[CaseRun], data_dir: Path) -> config.Settings:
    """Return the settings of the server that some runs share, and write their projects."""
    wanted = settings_of(runs[0].case, data_dir)
    endings = [run.ending for run in runs]
    tokens = [with_ending(token, ending) for token in wanted.auth.tokens for ending in endings]
    pillars = {name: served_by_all(pillar, endings) for name, pillar in wanted.liaison.pillars.items()}
    projects = [project for run in runs for project in write_project(run.case, data_dir / "projects", run.ending)]
    return wanted.model_copy(
        update={
            "auth": wanted.auth.model_copy(update={"tokens": tokens}),
            "liaison": wanted.liaison.model_copy(update={"pillars": pillars}),
            "intent_layer": wanted.intent_layer.model_copy(update={"projects": projects}),
        }
    )


def with_ending(token: config.TokenSettings, ending: str) -> config.TokenSettings:
    """Return the token of an agent of one run."""
    secret = SecretStr(token.token.get_secret_value() + ending)
    return token.model_copy(update={"name": token.name + ending, "token": secret, "tenant": token.tenant + ending})


def served_by_all(pillar: config.PillarSettings, endings: Sequence[str]) -> config.PillarSettings:
    """Return a pillar with the agents of all runs."""
    if not pillar.agent:
        return pillar
    agents = [pillar.agent] if isinstance(pillar.agent, str) else pillar.agent
    return pillar.model_copy(update={"agent": [agent + ending for agent in agents for ending in endings]})


@dataclass(frozen=True)
class RunCaller:
    """Calls as the agents of one run, in the names of its case."""

    caller: Caller
    ending: str
    names: frozenset[str]

    def call(self, method: str, params: Mapping[str, Any], token: str | None = TOKENS["alice"]) -> Outcome:
        """Return the result of a call."""
        outcome = self.caller.call(method, self._sent(params), token and token + self.ending)
        return Outcome(**self._received(vars(outcome)))

    def post(self, body: str, token: str | None) -> HttpAnswer:
        """Return the answer to a body, which names no agent."""
        assert isinstance(self.caller, JsonRpcCaller)
        answer = self.caller.post(body.encode(), token and token + self.ending)
        return replace(answer, content=answer.content.replace(self.ending.encode(), b""))

    def _sent(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._sent(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._sent(item) for item in value]
        return value + self.ending if isinstance(value, str) and value in self.names else value

    def _received(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._received(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(map(self._received, value))
        return value.replace(self.ending, "") if isinstance(value, str) else value


class CaseServers:
    """Runs the server that a run needs, with a bridge if a run calls one, and keeps it until a run needs another.

    With several `workers`, these share the data folder, and the bridge calls them in turn.
    """

    def __init__(self, runs: Sequence[CaseRun], folder: Path, workers: int = 1) -> None:
        self._runs = runs
        self._folder = folder
        self._workers = workers
        self._opened = ExitStack()
        self._server: str | None = None
        self._names: frozenset[str] = frozenset()
        self._grpc: list[GrpcCaller] = []
        self._bridge: JsonRpcCaller | None = None

    def caller(self, run: CaseRun) -> RunCaller:
        """Return the caller of a run, which may be used once."""
        return self.bridge_caller(run) or self.worker_callers(run)[0]

    def worker_callers(self, run: CaseRun) -> list[RunCaller]:
        """Return the callers of a run over gRPC, one for each worker."""
        self._switch_to(run.server)
        return [RunCaller(caller, run.ending, self._names) for caller in self._grpc]

    def bridge_caller(self, run: CaseRun) -> RunCaller | None:
        """Return the caller of a run over JSON-RPC, or None if the run is about gRPC."""
        self._switch_to(run.server)
        if run.transport != "jsonrpc":
            return None
        assert self._bridge is not None
        return RunCaller(self._bridge, run.ending, self._names)

    def close(self) -> None:
        """Stop the server."""
        self._opened.close()
        self._server = None

    def _switch_to(self, server: str) -> None:
        if server == self._server:
            return
        self.close()
        data_dir = Path(tempfile.mkdtemp(dir=self._folder))
        runs = [run for run in self._runs if run.server == server]
        wanted = shared_settings(runs, data_dir)
        open_block = self._opened.enter_context
        apps = (
            open_block(running_workers(wanted, self._workers)) if self._workers > 1 else [open_block(running(wanted))]
        )
        targets = [app.target for app in apps]
        self._grpc = [open_block(closing(GrpcCaller(target))) for target in targets]
        self._bridge = None
        if any(run.transport == "jsonrpc" for run in runs):
            self._bridge = JsonRpcCaller(open_block(bridging(wanted, ",".join(targets))))
        self._names = frozenset({PROJECT, *(token.name for token in settings_of(runs[0].case, data_dir).auth.tokens)})
        self._server = server
