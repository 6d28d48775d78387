"""The guide: reads the wishes of users, hands each conversation to an agent that can help, and waits for the answer.

CSTP_TARGET is the address of the server, CSTP_TOKEN the token of an agent that may converse and route.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from cstp_grpc.client import CstpClient, Json, Liaison
from cstp_grpc.contract.errors import DeadlineExceeded, LiaisonAgentUnavailable
from cstp_grpc.gen.liaison.v1 import liaison_pb2 as pb2

CALL_SECONDS = 10.0
ANSWER_SECONDS = 30.0

RULES = {
    "content": {"upload", "file", "files", "document", "documents"},
    "insights": {"best", "compare", "trend", "trends"},
}
"""The words that a user says for each pillar."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A message of a user, with the data that the guide has."""

    user: str
    text: str
    context: Mapping[str, Json]


WISHES = (
    Wish(
        "ada",
        "Please upload my sales of the last two years.",
        {"email": "ada@example.com", "files": [{"name": "2024.csv", "rows": 1210}, {"name": "2025.csv", "rows": 1398}]},
    ),
    Wish(
        "ben",
        "Which of my regions sells best?",
        {"email": "ben@example.com", "sales": {"north": 120, "south": 95, "west": 145}},
    ),
)


def main() -> int:
    """Serve all users, and return 0 if each of them got an answer."""
    with CstpClient(os.environ["CSTP_TARGET"], os.environ["CSTP_TOKEN"], timeout=CALL_SECONDS) as client:
        answered = [serve(client.liaison, wish) for wish in WISHES]
    return 0 if all(answered) else 1


def serve(liaison: Liaison, wish: Wish) -> bool:
    """Run a conversation from start to end, and return whether a liaison agent answered."""
    session = liaison.open_session(user_id=wish.user, context=wish.context).chat_session
    liaison.append_message(session.id, wish.text, role="user", message_id="wish")
    agent = hand_over(liaison, session, wish.text)
    messages = list(liaison.list_messages(session.id))
    show(session, messages)
    liaison.close_session(session.id)
    return any(message.active_agent == agent for message in messages)


def hand_over(liaison: Liaison, session: pb2.ChatSession, text: str) -> str | None:
    """Hand the message to a liaison agent and return its name, or None if the guide answers itself."""
    decision = decide(text)
    if decision is None:
        say(liaison, session, "I know nobody who could help you with that.")
        return None
    pillar, word = decision
    print(f"{session.user_id} says “{word}”, which is for {pillar}")
    try:
        routed = liaison.route_to_liaison_agent(
            pillar, chat_session_id=session.id, routing_reason=f"The user says “{word}”"
        )
        wait_for_return(liaison, routed)
    except (LiaisonAgentUnavailable, DeadlineExceeded) as error:
        print(f"no help from {pillar}: {error}")
        liaison.return_to_guide(session.id, reason="no answer in time")
        say(liaison, session, "Nobody can help you with that now. Please try again later.")
        return None
    return routed.chat_session.active_agent


def decide(text: str) -> tuple[str, str] | None:
    """Return the pillar for a text and the word that matched; None without a match."""
    said = re.findall(r"\w+", text.lower())
    return next(((pillar, word) for pillar, words in RULES.items() for word in said if word in words), None)


def wait_for_return(liaison: Liaison, routed: pb2.RouteToLiaisonAgentResponse) -> None:
    """Wait until the session is with the guide again. Raises DeadlineExceeded."""
    # From the hand-over on, so that a fast answer is not missed.
    events = liaison.watch_events(
        chat_session_id=routed.chat_session.id,
        types=["returned_to_guide"],
        after=routed.events[0].sequence,
        timeout=ANSWER_SECONDS,
    )
    with closing(events):
        next(events)


def say(liaison: Liaison, session: pb2.ChatSession, text: str) -> None:
    """Say something to the user."""
    liaison.append_message(session.id, text, role="assistant", message_id="guide")


def show(session: pb2.ChatSession, messages: list[pb2.ChatMessage]) -> None:
    """Print a conversation."""
    for message in messages:
        speaker = session.user_id if message.role == pb2.MESSAGE_ROLE_USER else message.active_agent
        print(f"  {speaker}: {message.content}")


if __name__ == "__main__":
    sys.exit(main())
