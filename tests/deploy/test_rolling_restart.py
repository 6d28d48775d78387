"""Servers on one database that are restarted one after the other behind a proxy, while agents call them."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.json_codec import from_json
from cstp_grpc.contract.methods import contract_methods
from tests.cli.serving import READY, Process, started
from tests.databases import PostgresServer
from tests.deploy.tools import require_tool
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
TOKEN = "a-token-for-a-rolling-restart"
CHECK = {"action": {"description": "Deploy", "stakes": "low"}}
CALLS_BETWEEN = 40
"""Calls of each kind that must be answered before the next server is stopped."""


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens."""
    with ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


class Proxy:
    """A proxy in front of servers, by the configuration that is in `deploy/`."""

    def __init__(self, folder: Path, port: int, servers: Sequence[int]) -> None:
        self.folder = folder
        self.port = port
        self.servers = servers

    def configure(self) -> list[str]:
        """Write the configuration, and return the arguments of the program."""
        raise NotImplementedError

    def uses_all_servers(self) -> bool:
        """Return whether calls go to all servers."""
        raise NotImplementedError


class Envoy(Proxy):
    """Envoy, which asks servers for their health."""

    def configure(self) -> list[str]:
        wanted = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())
        [self.admin] = free_ports(1)
        wanted["admin"]["address"]["socket_address"]["port_value"] = self.admin
        resources = wanted["static_resources"]
        resources["listeners"] = [each for each in resources["listeners"] if each["name"] == "grpc"]
        resources["clusters"] = [each for each in resources["clusters"] if each["name"] == "grpc"]
        resources["listeners"][0]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": self.port}
        endpoints = resources["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"]
        for endpoint, server in zip(endpoints, self.servers, strict=True):
            endpoint["endpoint"]["address"]["socket_address"] = {"address": "127.0.0.1", "port_value": server}
        (self.folder / "envoy.yaml").write_text(json.dumps(wanted))
        return ["-c", "envoy.yaml", "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]

    def uses_all_servers(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.admin}/clusters?format=json", timeout=30) as answer:
            [cluster] = json.load(answer)["cluster_statuses"]
        return all(host["health_status"] == {"eds_health_status": "HEALTHY"} for host in cluster["host_statuses"])


class Nginx(Proxy):
    """nginx, which tries a server again a second after a failure."""

    def configure(self) -> list[str]:
        text = (DEPLOY / "nginx" / "nginx.conf").read_text().replace("listen 50051", f"listen 127.0.0.1:{self.port}")
        for number, server in enumerate(self.servers, 1):
            text = text.replace(f"server-{number}:50051", f"127.0.0.1:{server}")
        (self.folder / "nginx.conf").write_text(text)
        return ["-p", str(self.folder), "-c", "nginx.conf", "-e", "stderr", "-g", "daemon off;"]

    def uses_all_servers(self) -> bool:
        return True


PROXIES: Mapping[str, type[Proxy]] = {"envoy": Envoy, "nginx": Nginx}


@contextmanager
def proxying(name: str, folder: Path, port: int, servers: Sequence[int]) -> Iterator[Proxy]:
    """Run a proxy in front of servers for the length of a block."""
    program = require_tool(name)
    proxy = PROXIES[name](folder, port, servers)
    with subprocess.Popen([program, *proxy.configure()], cwd=folder) as process:
        try:
            yield proxy
        finally:
            process.terminate()


@contextmanager
def serving(folder: Path, port: int, database: str) -> Iterator[Process]:
    """Run a server on a shared database."""
    folder.mkdir(exist_ok=True)
    wanted = {
        "data_dir": str(folder / "var"),
        "storage": {"url": database},
        "grpc": {"port": port},
        "auth": {"tokens": [{"name": "tester", "token": TOKEN, "permissions": sorted(Permission)}]},
        "rate_limits": {"enabled": False},
    }
    (folder / "cstp.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(wanted))))
    environment = {"CSTP_EMBEDDING__PROVIDER": "lexical"}
    with started("serve", "--no-bridge", "--config", str(folder / "cstp.yaml"), environment=environment) as process:
        process.wait_for(READY)
        yield process


class Agents:
    """Agents that call without a pause until they are told to stop."""

    def __init__(self, target: str) -> None:
        self._client = CstpClient(f"grpc://{target}", TOKEN, timeout=30)
        self._stopped = threading.Event()
        self._threads = ThreadPoolExecutor()
        self.answered: Counter[str] = Counter()

    def __enter__(self) -> Agents:
        calls: Mapping[str, Callable[[], object]] = {
            "check": partial(self._call, "cstp.checkGuardrails", CHECK),
            "query": partial(self._call, "cstp.queryDecisions", {"query": "deploy the shop"}),
            "announce": self._announce,
            "record": self._record,
        }
        self._running = [self._threads.submit(self._repeat, name, call) for name, call in calls.items()]
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._threads.shutdown()
        self._client.close()

    def _call(self, method: str, params: Mapping[str, Any]) -> object:
        rpc = contract_methods()[method]
        return self._client.call(rpc, from_json(params, rpc.request))

    def _announce(self) -> object:
        number = self.answered["announce"]
        return self._call("cstp.announceIntent", {"intent": "Deploy the shop", "correlationId": f"rolling-{number}"})

    def _record(self) -> object:
        number = self.answered["record"]
        decision = {"title": f"Deploy the shop, release {number}", "category": "process", "confidence": 0.9}
        return self._call("cstp.recordDecision", {"decision": decision, "requestId": f"rolling-{number}"})

    def _repeat(self, name: str, call: Callable[[], object]) -> None:
        while not self._stopped.is_set():
            call()
            self.answered[name] += 1

    def wait_for_answers(self) -> None:
        """Return when each kind of call has been answered some more times. Raises what a call has raised."""
        wanted = {name: self.answered[name] + CALLS_BETWEEN for name in ("check", "query", "announce", "record")}

        def is_answered() -> bool:
            for each in self._running:
                if each.done():
                    each.result()
            return all(self.answered[name] >= count for name, count in wanted.items())

        wait_until(is_answered, f"{CALLS_BETWEEN} more answers of each kind")


@pytest.mark.parametrize("proxy", PROXIES)
def test_no_call_fails_while_servers_are_restarted_one_after_the_other(
    proxy: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    port, *ports = free_ports(3)
    with ExitStack() as opened:
        url = opened.enter_context(postgres.temporary_database(migrated=True))
        begin = [partial(serving, tmp_path / str(each), each, url) for each in ports]
        running = [opened.enter_context(each()) for each in begin]
        between = opened.enter_context(proxying(proxy, tmp_path, port, ports))
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(30)
        with Agents(f"127.0.0.1:{port}") as agents:
            wait_until(between.uses_all_servers, "the proxy uses both servers")
            agents.wait_for_answers()
            for server, start_again in zip(running, begin, strict=True):
                assert server.end(signal.SIGTERM) == 0
                agents.wait_for_answers()
                opened.enter_context(start_again())
                # As a rolling update does: the next is stopped when this one is in use.
                wait_until(between.uses_all_servers, "the proxy uses both servers")
                agents.wait_for_answers()
        with CstpClient(f"grpc://127.0.0.1:{port}", TOKEN) as client:
            titles = [decision.title for decision in client.list_decisions()]
        assert sorted(titles) == sorted(set(titles)), "what was repeated is recorded once"
        assert len(titles) == agents.answered["record"]
