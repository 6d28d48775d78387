"""What servers delete by themselves when it is old."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cstp_grpc.client.cstp_client import CstpClient
from cstp_grpc.server.app import App
from tests.harness import TOKENS, running, settings
from tests.waiting import wait_until


def client_of(app: App) -> CstpClient:
    return CstpClient(f"grpc://{app.target}", TOKENS["alice"])


def test_decisions_and_intents_go_when_they_are_old(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, client_of(app) as client:
        client.record_decision("An old decision")
        for number in range(3):
            client.announce_intent(f"Something old, {number}", correlation_id=f"c-{number}")
    kept = settings(tmp_path, retention={"decision_days": 30, "intent_days": 10})
    with (
        running(kept, clock=lambda: datetime.now(UTC) + timedelta(days=20)) as app,
        client_of(app) as client,
    ):
        wait_until(lambda: len(list(client.list_intents())) == 1, "old intents are deleted, but for the newest")
        assert [decision.title for decision in client.list_decisions()] == ["An old decision"]
    with (
        running(kept, clock=lambda: datetime.now(UTC) + timedelta(days=40)) as app,
        client_of(app) as client,
    ):
        wait_until(lambda: not list(client.list_decisions()), "old decisions are deleted")
        assert not client.query_decisions("An old decision").decisions
        entry = next(iter(client.list_audit_entries(event="decision_deleted")))
        assert (entry.requesting_agent, entry.action) == ("cstp", "expired")


def test_tokens_that_ended_go_when_they_are_old_and_the_trail_goes_on_naming_them(tmp_path: Path) -> None:
    with running(settings(tmp_path)) as app, client_of(app) as client:
        revoked = client.create_token("r-1", "deployer", ("query",)).token.id
        client.revoke_token(revoked)
        kept = client.create_token("r-2", "deployer", ("query",)).token.id
    assert find_tokens(tmp_path, timedelta(days=89), 2) == {kept, revoked}
    assert find_tokens(tmp_path, timedelta(days=91), 1) == {kept}
    with running(settings(tmp_path)) as app, client_of(app) as client:
        (entry,) = client.list_audit_entries(event="token_revoked")
        assert revoked in entry.action


def find_tokens(folder: Path, later: timedelta, number: int) -> set[str]:
    """Return the ids of all tokens that a server has some time later, once there are so many."""
    with running(settings(folder), clock=lambda: datetime.now(UTC) + later) as app, client_of(app) as client:
        wait_until(lambda: len(list(client.list_tokens(with_ended=True))) == number, "old tokens are removed")
        return {token.id for token in client.list_tokens(with_ended=True)}
