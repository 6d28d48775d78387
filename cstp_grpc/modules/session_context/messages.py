"""Conversion of session contexts to messages of the contract."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cstp_grpc.common.quoted_text import MAX_QUOTED_CHARACTERS
from cstp_grpc.common.unicode_text import cut_line
from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.guardrails.messages import guardrail_message, input_message
from cstp_grpc.core.intents.messages import RELATED_INTENT
from cstp_grpc.core.intents.related_intents import RelatedIntent
from cstp_grpc.gen.cstp.v1 import code_pb2, intents_pb2, session_context_pb2
from cstp_grpc.modules.session_context.markdown_rendering import cut_note, summary_lines
from cstp_grpc.modules.session_context.model import FittedContext, GoverningNote, SessionContextRequest
from cstp_grpc.modules.session_context.ready_queue import ReadyItem, ReadyQueue, ReadyQueueRequest

DEFAULT_TOKENS: Final = 2000
"""The default budget. Chosen: a hundredth of the input of models, and enough for two rounds of items."""
DEFAULT_READY_ITEMS: Final = 20
MAX_PATHS: Final = 10
"""Maximum number of paths of an intent in an answer."""


REQUEST: Final = MessageMapper(
    SessionContextRequest, session_context_pb2.GetSessionContextRequest, given=("max_tokens",)
)
DECISION: Final = MessageMapper(
    Decision,
    session_context_pb2.SessionDecision,
    {"lesson": lambda item: cut_line(item.notes, MAX_QUOTED_CHARACTERS) if item.notes else None},
)
NOTE: Final = MessageMapper(
    GoverningNote,
    session_context_pb2.SessionCodeNote,
    {"note": lambda item: code_pb2.CodeNote(file=item.note.file, text=cut_note(item.note.text), line=item.note.line)},
)
RESPONSE: Final = MessageMapper(
    FittedContext,
    session_context_pb2.GetSessionContextResponse,
    {
        "lessons": lambda fitted: group_lessons(fitted.context.lessons),
        "summaries": lambda fitted: map(summary_message, fitted.context.summaries),
        "guardrails": lambda fitted: [
            guardrail_message(each, shows_expressions=False) for each in fitted.context.guardrails
        ],
        "inputs": lambda fitted: map(input_message, fitted.context.inputs),
        "related_intents": lambda fitted: map(session_intent_message, fitted.context.related_intents),
    },
    parts=("context",),
    nested=(DECISION, NOTE),
)
READY_REQUEST: Final = MessageMapper(ReadyQueueRequest, session_context_pb2.GetReadyQueueRequest, given=("limit",))
READY_ITEM: Final = MessageMapper(
    ReadyItem, session_context_pb2.ReadyItem, {"title": lambda item: cut_line(item.title, MAX_QUOTED_CHARACTERS)}
)
READY_QUEUE: Final = MessageMapper(ReadyQueue, session_context_pb2.GetReadyQueueResponse, nested=(READY_ITEM,))


def parse_ready_queue(message: session_context_pb2.GetReadyQueueRequest) -> ReadyQueueRequest:
    return READY_REQUEST.decode(message, limit=message.limit if message.HasField("limit") else DEFAULT_READY_ITEMS)


def parse_session_context(message: session_context_pb2.GetSessionContextRequest) -> SessionContextRequest:
    max_tokens = message.max_tokens if message.HasField("max_tokens") else DEFAULT_TOKENS
    return REQUEST.decode(message, max_tokens=max_tokens)


def group_lessons(lessons: Iterable[Decision]) -> list[session_context_pb2.CategoryLessons]:
    """Return lessons by category, in the order in which the categories first appear."""
    groups: dict[str | None, session_context_pb2.CategoryLessons] = {}
    for item in lessons:
        group = groups.setdefault(item.category, session_context_pb2.CategoryLessons(category=item.category))
        DECISION.write(group.decisions.add(), item)
    return list(groups.values())


def summary_message(item: Decision) -> session_context_pb2.SessionDecision:
    message = DECISION.encode(item)
    message.lesson = "\n".join(summary_lines(item))
    return message


def session_intent_message(item: RelatedIntent) -> intents_pb2.RelatedIntent:
    """Convert an intent of another agent to a message in short."""
    message = RELATED_INTENT.encode(item)
    message.intent = cut_line(message.intent, MAX_QUOTED_CHARACTERS)
    if message.closing.notes:
        message.closing.notes = cut_line(message.closing.notes, MAX_QUOTED_CHARACTERS)
    del message.paths[MAX_PATHS:]
    return message
