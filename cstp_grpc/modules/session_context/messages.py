"""Conversion of session contexts to messages of the contract."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cstp_grpc.common.quoted_text import MAX_QUOTED_CHARACTERS
from cstp_grpc.common.unicode_text import cut_line
from cstp_grpc.contract import proto_values
from cstp_grpc.contract.proto_values import EnumMapping
from cstp_grpc.core.decisions.model import Decision
from cstp_grpc.core.guardrails.messages import guardrail_message, input_message
from cstp_grpc.core.intents.related_intents import RelatedIntent
from cstp_grpc.core.intents.servicer import related_intent_message
from cstp_grpc.gen.cstp.v1 import code_pb2, intents_pb2, session_context_pb2
from cstp_grpc.modules.session_context.markdown_rendering import cut_note
from cstp_grpc.modules.session_context.model import (
    ConfidenceMeaning,
    FittedContext,
    GoverningNote,
    OmittedPart,
    SessionContextPart,
    SessionContextRequest,
)

PART: Final = EnumMapping(session_context_pb2.SessionContextPart, SessionContextPart)
DEFAULT_TOKENS: Final = 2000
"""The budget if none is given. Chosen: a hundredth of what models read, and room for two rounds of items."""
MAX_PATHS: Final = 10
"""Maximum number of paths of an intent in an answer."""


def parse_session_context(message: session_context_pb2.GetSessionContextRequest) -> SessionContextRequest:
    return SessionContextRequest(
        max_tokens=message.max_tokens if message.HasField("max_tokens") else DEFAULT_TOKENS,
        task=proto_values.optional_field(message, "task"),
        project=proto_values.optional_field(message, "project"),
        paths=tuple(message.paths),
    )


def session_context_response(fitted: FittedContext) -> session_context_pb2.GetSessionContextResponse:
    """Convert a session context to the response that has it."""
    context = fitted.context
    return session_context_pb2.GetSessionContextResponse(
        agent=context.agent,
        read_at=proto_values.timestamp_message(context.read_at),
        reviews_due=map(session_decision_message, context.reviews_due),
        failures=map(session_decision_message, context.failures),
        recent=map(session_decision_message, context.recent),
        lessons=group_lessons(context.lessons),
        guardrails=[guardrail_message(each, shows_expressions=False) for each in context.guardrails],
        inputs=map(input_message, context.inputs),
        calibration=map(confidence_message, context.calibration),
        related_intents=map(session_intent_message, context.related_intents),
        code=map(session_note_message, context.code),
        left_out=map(omitted_part_message, fitted.left_out),
        missing=context.missing,
        markdown=fitted.markdown,
        tokens=fitted.tokens,
    )


def session_decision_message(item: Decision) -> session_context_pb2.SessionDecision:
    """Convert a decision to a message in short."""
    return session_context_pb2.SessionDecision(
        id=item.id,
        title=item.title,
        category=item.category,
        confidence=item.confidence,
        status=proto_values.STATUS.number(item.status),
        outcome=proto_values.OUTCOME.number(item.outcome),
        date=proto_values.timestamp_message(item.date),
        review_by=proto_values.optional_timestamp(item.review_by),
        lesson=cut_line(item.notes, MAX_QUOTED_CHARACTERS) if item.notes else None,
        project=item.project,
        agent=item.agent,
    )


def group_lessons(lessons: Iterable[Decision]) -> list[session_context_pb2.CategoryLessons]:
    """Return lessons by category, in the order in which the categories first appear."""
    groups: dict[str | None, session_context_pb2.CategoryLessons] = {}
    for item in lessons:
        group = groups.setdefault(item.category, session_context_pb2.CategoryLessons(category=item.category))
        group.decisions.append(session_decision_message(item))
    return list(groups.values())


def confidence_message(item: ConfidenceMeaning) -> session_context_pb2.ConfidenceMeaning:
    """Convert what confidences have meant to a message."""
    return session_context_pb2.ConfidenceMeaning(
        category=item.category,
        lower=item.lower,
        count=item.count,
        success_rate=item.success_rate,
        misleading=item.is_misleading,
    )


def session_intent_message(item: RelatedIntent) -> intents_pb2.RelatedIntent:
    """Convert an intent of another agent to a message in short."""
    message = related_intent_message(item)
    message.intent = cut_line(message.intent, MAX_QUOTED_CHARACTERS)
    if message.closing.notes:
        message.closing.notes = cut_line(message.closing.notes, MAX_QUOTED_CHARACTERS)
    del message.paths[MAX_PATHS:]
    return message


def session_note_message(item: GoverningNote) -> session_context_pb2.SessionCodeNote:
    """Convert what a node says to a message."""
    note = item.note
    return session_context_pb2.SessionCodeNote(
        section=item.section, note=code_pb2.CodeNote(file=note.file, text=cut_note(note.text), line=note.line)
    )


def omitted_part_message(item: OmittedPart) -> session_context_pb2.OmittedSessionPart:
    """Convert what was left out to a message."""
    return session_context_pb2.OmittedSessionPart(part=PART.number(item.part), count=item.count, more=item.more)
