"""Announcements whose answers must contain some things and must not contain others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from cstp_grpc.contract import proto_values
from cstp_grpc.contract.enums import Outcome
from cstp_grpc.gen.cstp.v1 import cstp_pb2, cstp_pb2_grpc, journal_pb2, journal_pb2_grpc
from tests.bench.clients import dialled
from tests.bench.processes import server
from tests.bench.retrieval.engines import METADATA

CASES = Path(__file__).with_name("advice.yaml")


def run_advice_cases(folder: Path, provider: str) -> Sequence[tuple[str, list[str]]]:
    """Return the intent of each case with what is wrong about its answer; nothing is, if the list is empty."""
    content = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    with server(folder, "--provider", provider) as served, dialled(served.grpc) as channel:
        journal = journal_pb2_grpc.JournalServiceStub(channel)
        imported = journal.ImportDecisions(
            (advice_record(key, each) for key, each in content["records"].items()), metadata=METADATA
        )
        keys = {each.decision_id: each.source for each in imported.results}
        stub = cstp_pb2_grpc.CstpServiceStub(channel)
        return [(case["intent"], judge_answer(case, announce(stub, case), keys)) for case in content["cases"]]


def advice_record(key: str, content: Mapping[str, Any]) -> journal_pb2.ImportDecisionsRequest:
    """Return the request that imports a record of the cases; its key is the source."""
    request = journal_pb2.ImportDecisionsRequest(source=key)
    for name in ("title", "context", "category", "project", "notes"):
        if name in content:
            setattr(request.decision, name, content[name])
    if "outcome" in content:
        request.decision.outcome = proto_values.OUTCOME.number(Outcome(content["outcome"]))
    request.links.supersedes.extend(content.get("supersedes", []))
    return request


def announce(stub: cstp_pb2_grpc.CstpServiceStub, case: Mapping[str, Any]) -> cstp_pb2.AnnounceIntentResponse:
    """Announce the intent of a case."""
    request = cstp_pb2.AnnounceIntentRequest(intent=case["intent"], category=case.get("category"))
    return stub.AnnounceIntent(request, metadata=METADATA)


def judge_answer(
    case: Mapping[str, Any], answer: cstp_pb2.AnnounceIntentResponse, keys: Mapping[str, str]
) -> list[str]:
    """Return the faults of an answer."""
    listed = [keys[each.id] for each in answer.similar_decisions]
    said = "\n".join(answer.suggestions)
    problems = [f"{key} is not listed" for key in case.get("listed", []) if key not in listed]
    problems += [f"{key} is listed" for key in case.get("unlisted", []) if key in listed]
    problems += [f"{text!r} is not said" for text in case.get("said", []) if text not in said]
    problems += [f"{text!r} is said" for text in case.get("unsaid", []) if text in said]
    if "first" in case and listed[:1] != [case["first"]]:
        problems.append(f"{case['first']} is not first but {listed[:1]}")
    if len(listed) > case.get("at_most", len(listed)):
        problems.append(f"{len(listed)} decisions are listed: {listed}")
    return problems
