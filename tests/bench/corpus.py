"""Decisions to measure on: made from word lists, the same each time."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from cstp_grpc.gen.cstp.v1 import journal_pb2, types_pb2

VERBS = ["Adopt", "Replace", "Retire", "Split", "Merge", "Cache", "Encrypt", "Migrate", "Shard", "Automate"]
THINGS = [
    "the session store",
    "the message queue",
    "the payment service",
    "the search index",
    "the deployment pipeline",
    "the user database",
    "the load balancer",
    "the image registry",
    "the audit log",
    "the feature flags",
    "the report generator",
    "the mail gateway",
]
MEANS = ["PostgreSQL", "Redis", "Kafka", "a managed service", "object storage", "a sidecar", "blue-green switching"]
PLACES = [
    "in the shop",
    "for the mobile apps",
    "in the data centre",
    "for partners",
    "in the back office",
    "at the edge",
]
CATEGORIES = ["architecture", "process", "security", "operations"]
START = datetime(2020, 1, 1, tzinfo=UTC)


def decisions(count: int, seed: int = 7) -> Iterator[journal_pb2.ImportDecisionsRequest]:
    """Yield records to import; every one is shared."""
    pick = random.Random(seed)
    outcomes = list(types_pb2.Outcome.values())
    for number in range(count):
        thing, means = pick.choice(THINGS), pick.choice(MEANS)
        request = journal_pb2.ImportDecisionsRequest(source=f"corpus#{number}")
        decision = request.decision
        decision.title = f"{pick.choice(VERBS)} {thing} with {means} {pick.choice(PLACES)} ({number})"
        decision.context = (
            f"Load on {thing} grows by {pick.randint(2, 90)} percent a year and {means} is known to the team."
        )
        decision.category = pick.choice(CATEGORIES)
        decision.confidence = pick.randint(0, 100) / 100
        decision.outcome = pick.choice(outcomes)
        decision.date.FromDatetime(START + timedelta(hours=number))
        decision.notes = f"Plan {pick.randint(1, 9)} weeks for {means}."
        decision.visibility = types_pb2.VISIBILITY_SHARED
        yield request


def questions(seed: int = 11) -> Iterator[str]:
    """Yield texts to search for, without end and none twice."""
    pick = random.Random(seed)
    number = 0
    while True:
        number += 1
        yield f"should we {pick.choice(VERBS).lower()} {pick.choice(THINGS)} {pick.choice(PLACES)}, attempt {number}"
