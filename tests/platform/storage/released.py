"""The journal of the last release: `make released` writes it with the server of this checkout, and tests upgrade it."""

from __future__ import annotations

import sqlite3
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from cstp_grpc.client import CstpClient
from cstp_grpc.common.version import VERSION
from cstp_grpc.gen.cstp.v1 import journal_pb2
from tests.harness import TOKENS, running, settings

HEADING = "-- The journal of CSTP "
TITLE = "Deploy the auth service to production"
NOTES = "Logins failed for ten minutes"


def write_journal_of_this_version(path: Path) -> None:
    """Write a journal as SQL: the tables, and a few rows of what agents leave in it."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        with running(settings(data)) as app, CstpClient(f"grpc://{app.target}", TOKENS["alice"]) as alice:
            leave_rows(alice)
        with closing(sqlite3.connect(data / "journal.db")) as connection:
            path.write_text("".join(f"{line}\n" for line in (f"{HEADING}{VERSION}", *connection.iterdump())))


def leave_rows(client: CstpClient) -> None:
    """Make calls of each kind that writes to the journal."""
    facts = {"affectsProduction": True, "codeReviewCompleted": True, "ciPassing": True}
    decision = client.record_decision(TITLE, stakes="high", confidence=0.8, tags=["auth"], visibility="shared")
    client.review_decision(decision.id, "partial", notes=NOTES)
    client.record_decision("Roll the auth service back", links=journal_pb2.Links(depends_on=[decision.id]))
    client.announce_intent(TITLE, stakes="high", metadata=facts)
    client.check_guardrails("Drop the orders table", stakes="critical", context={"affectsProduction": True})
    client.liaison.heartbeat("content")
    session = client.liaison.open_session(user_id="ada", context={"topic": "logins"}).chat_session
    client.liaison.append_message(session.id, "Why do logins fail?", "user")
    client.liaison.route_to_liaison_agent("content", chat_session_id=session.id)
    client.liaison.share_context_to_agent("guide", "liaison_content", {"topic": "logins"})


if __name__ == "__main__":
    write_journal_of_this_version(Path(sys.argv[1]))
