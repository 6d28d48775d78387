"""The servers that clients of every language are tried on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.enums import Permission
from cstp_grpc.server.app import App
from tests.certificates import make_certificate
from tests.clients.faults import faulty_server
from tests.harness import TOKENS, running, settings

CASES = Path(__file__).parents[2] / "clients" / "cases.yaml"
SESSION = "clients-session"
FURTHER_TOKENS = {name: f"{name}-secret-token" for name in ("limited", "announcer", "approver")}
STRANGER = "stranger-secret-token"
RULEBOOK = """
apiVersion: cstp.guardrails/v1
metadata: {name: clients, version: "1"}
inputs:
  affectsProduction: {type: bool, default: false}
  codeReviewCompleted: {type: bool, default: false}
  rows: {type: number, default: 0}
guardrails:
  - id: no-review
    name: Production Requires Review
    when: context.affectsProduction && !context.codeReviewCompleted
    severity: block
    message: Production needs a review
    suggestion: Have it reviewed
  - id: many-rows
    name: Many Rows
    when: context.rows > 1000
    severity: approve
    message: Somebody looks at changes of many rows
"""


@dataclass(frozen=True)
class Table:
    """The cases and where the servers are, and the file that holds both for clients of other languages."""

    path: Path
    content: dict[str, Any]

    def case(self, name: str) -> dict[str, Any]:
        """Return the case of a name."""
        found: dict[str, Any] = next(case for case in self.content["cases"] if case["name"] == name)
        return found


@contextmanager
def table(folder: Path, run: str) -> Iterator[Table]:
    """Run the servers for the length of a block and yield the cases and where the servers are.

    `run` tells the identifiers of one run from those of another on the same servers.
    """
    rulebook = folder / "rulebook.yaml"
    rulebook.write_text(RULEBOOK, encoding="utf-8")
    own = make_certificate(named(folder, "own"))
    foreign = make_certificate(named(folder, "foreign"))
    shared = {"cstp": {"guardrails": {"config_path": str(rulebook)}}, **limited()}
    with (
        running(settings(folder / "plain", **shared)) as plain,
        running(settings(folder / "tls", grpc=secured(own), **shared)) as tls,
        running(settings(folder / "other", grpc=secured(foreign), **shared)) as other,
        faulty_server() as faults,
        nobody() as nowhere,
    ):
        prepare(plain)
        content = CASES.read_text(encoding="utf-8").replace("$run", run)
        found = {
            "servers": {
                "plain": f"grpc://{plain.target}",
                "tls": f"grpcs://localhost:{tls.port}",
                "https": f"https://localhost:{tls.port}",
                "foreign": f"grpcs://localhost:{other.port}",
                "faults": f"grpc://{faults}",
                "nobody": f"grpc://{nowhere}",
            },
            "tokens": {**TOKENS, **FURTHER_TOKENS, "stranger": STRANGER, "none": None},
            "rootCertificates": str(own.certificate),
            "cases": yaml.safe_load(content)["cases"],
        }
        written = folder / "cases.json"
        written.write_text(json.dumps(found, indent=2), encoding="utf-8")
        yield Table(written, found)


def named(folder: Path, name: str) -> Path:
    """Return a new folder."""
    made = folder / name
    made.mkdir()
    return made


def secured(certificate: Any) -> dict[str, Any]:
    """Return the settings of a server that shows a certificate."""
    return {"port": 0, "host": "localhost", "tls": {"certificate": certificate.certificate, "key": certificate.key}}


def limited() -> dict[str, Any]:
    """Return the settings of agents, one of which may query once a second."""
    everything = sorted(Permission)
    tokens = [
        {"name": "alice", "token": TOKENS["alice"], "permissions": everything},
        {"name": "reader", "token": TOKENS["reader"]},
        {"name": "limited", "token": FURTHER_TOKENS["limited"]},
        {"name": "announcer", "token": FURTHER_TOKENS["announcer"], "permissions": [Permission.ANNOUNCE]},
        {"name": "approver", "token": FURTHER_TOKENS["approver"], "permissions": [Permission.APPROVE]},
    ]
    rates = {"enabled": True, "per_agent": "100000/minute", "methods": {"cstp.queryDecisions": "1/second"}}
    return {"auth": {"tokens": tokens}, "rate_limits": rates}


def prepare(app: App) -> None:
    """Give a server what the cases expect to find."""
    with CstpClient(app.target, TOKENS["alice"]) as client:
        client.record_decision(
            "Put a queue between services",
            category="architecture",
            status="reviewed",
            outcome="success",
            date=datetime(2026, 1, 1, tzinfo=UTC),
        )
        client.liaison.open_session(user_id="user", chat_session_id=SESSION)


@contextmanager
def nobody() -> Iterator[str]:
    """Hold a port on which nobody listens for the length of a block."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"
