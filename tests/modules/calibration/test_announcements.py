"""Announcements of agents whose confidence has been far from their record."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cstp_grpc.client import CstpClient
from cstp_grpc.contract.enums import Outcome
from tests.harness import TOKENS, running, settings


@pytest.fixture
def client(tmp_path: Path) -> Iterator[CstpClient]:
    with running(settings(tmp_path)) as app, CstpClient(app.target, TOKENS["alice"]) as client:
        yield client


def warnings(client: CstpClient) -> list[str]:
    """Announce something with a confidence of 0.9, and return what is said of that."""
    response = client.announce_intent("Rotate signing keys", confidence=0.9)
    return [text for text in response.suggestions if text.startswith("Your confidence of 0.9 has meant ")]


def test_a_warning_follows_the_reviews(client: CstpClient) -> None:
    assert warnings(client) == []
    recorded = [client.record_decision("Ship version 2", confidence=0.9, outcome=Outcome.FAILURE).id for _ in range(20)]
    (warning,) = warnings(client)
    assert "has meant 0 in 20 reviewed decisions (95 % interval 0.00 to 0.16)" in warning
    assert warnings(client) == [warning]
    for decision_id in recorded[:18]:
        client.review_decision(decision_id, Outcome.SUCCESS)
    assert warnings(client) == []


def test_a_deletion_is_noticed_too(client: CstpClient) -> None:
    recorded = [client.record_decision("Ship version 2", confidence=0.9, outcome=Outcome.FAILURE).id for _ in range(20)]
    assert warnings(client)
    client.delete_decision(recorded[0])
    assert warnings(client) == []


def test_without_a_confidence_nothing_is_said_of_it(client: CstpClient) -> None:
    for _ in range(20):
        client.record_decision("Ship version 2", confidence=0.9, outcome=Outcome.FAILURE)
    assert list(client.announce_intent("Rotate signing keys").suggestions) == []
