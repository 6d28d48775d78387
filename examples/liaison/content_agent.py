"""A local liaison agent: watches the server with its own token, accepts the sessions handed to it and answers them.

CSTP_TARGET is the address of the server, CSTP_TOKEN the token of the agent that is configured for the pillar, and
POSITION_FILE stores the position of the last event, so that a restarted agent continues there.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from cstp_grpc.client import CstpClient, Liaison
from cstp_grpc.contract.errors import Conflict, CstpError, SessionNotFound, SessionUpdateFailed, SessionWithAnotherAgent

PILLAR = "content"
AGENT = f"liaison_{PILLAR}"
INSTANCE = f"{PILLAR}-1"
CALL_SECONDS = 10.0
BEAT_SECONDS = 10.0
"""A third of the server's liaison.heartbeat_seconds, so that one lost heartbeat does not count as an absence."""


def main() -> None:
    """Serve the pillar until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    position = Path(os.environ["POSITION_FILE"])
    with (
        CstpClient(os.environ["CSTP_TARGET"], os.environ["CSTP_TOKEN"], timeout=CALL_SECONDS) as client,
        suppress(KeyboardInterrupt),
        present(client.liaison),
    ):
        watch(client.liaison, position)


@contextmanager
def present(liaison: Liaison) -> Iterator[None]:
    """Send heartbeats for the length of a block, then tell the server that the agent leaves."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_SECONDS):
            try:
                liaison.heartbeat(PILLAR)
            except CstpError as error:
                print(error)

    liaison.heartbeat(PILLAR)
    beating = threading.Thread(target=beat)
    beating.start()
    print(f"ready as {AGENT}")
    try:
        yield
    finally:
        ended.set()
        beating.join()
        liaison.heartbeat(PILLAR, leaving=True)


def watch(liaison: Liaison, position: Path) -> None:
    """Answer each session that is handed to the agent, and store the position."""
    seen = int(position.read_text()) if position.exists() else 0
    events = liaison.watch_events(agent=AGENT, types=["liaison_agent_activated"], after=seen)
    with closing(events):
        for event in events:
            answer(liaison, event.chat_session_id)
            position.write_text(str(event.sequence))


def answer(liaison: Liaison, session_id: str) -> None:
    """Answer a session and return it to the guide, unless the session has continued meanwhile.

    It is safe to repeat: the answer to an activation has the key of its routing.
    """
    try:
        claimed = liaison.claim_session(session_id, claimant=INSTANCE)
        payload = claimed.liaison_agent_activation.semantic_payload
        context = json_format.MessageToDict(payload.shared_context)
        print(f"{context['conversation_history'][-1]['content']} (email: {context.get('email')})")
        key = payload.routing_decision.idempotency_key
        number = claimed.claim_number
        liaison.append_message(session_id, said_of(context), role="assistant", message_id=key, claim_number=number)
        liaison.return_to_guide(session_id, reason="answered", claim_number=number)
    except (SessionNotFound, SessionWithAnotherAgent, SessionUpdateFailed, Conflict) as error:
        print(error)


def said_of(context: Mapping[str, Any]) -> str:
    """Return the agent's answer to a context."""
    files = context.get("files", [])
    if not files:
        return "I see no files here."
    names = [file["name"] for file in files]
    rows = sum(file["rows"] for file in files)
    return f"I took over {' and '.join(names)}, {rows:g} rows in all."


if __name__ == "__main__":
    main()
