"""Conversion between the messages of the contract and intents."""

from __future__ import annotations

from typing import Final

from cstp_grpc.contract.message_mapping import MessageMapper
from cstp_grpc.core.intents import model
from cstp_grpc.core.intents.closing import ClosingRequest
from cstp_grpc.core.intents.related_intents import RelatedIntent
from cstp_grpc.gen.cstp.v1 import audit_pb2, code_pb2, cstp_pb2, intents_pb2, types_pb2


def claimed_agent_message(intent: model.Intent) -> types_pb2.AgentInfo | None:
    """Return the agent that an intent names as its announcer, or None."""
    if intent.claimed_id is None and intent.claimed_url is None:
        return None
    return types_pb2.AgentInfo(id=intent.claimed_id, url=intent.claimed_url)


ANNOUNCEMENT: Final = MessageMapper(
    model.Announcement,
    cstp_pb2.AnnounceIntentRequest,
    given=("correlation_id", "claimed_id", "claimed_url", "visibility", "invocation"),
)
CODE_CONTEXT: Final = MessageMapper(model.CodeContext, code_pb2.CodeContext)
CODE_NOTE: Final = MessageMapper(model.CodeNote, code_pb2.CodeNote)
SUGGESTION: Final = MessageMapper(
    model.Suggestion,
    cstp_pb2.Suggestion,
    {"agent": "intent.agent", "correlation_id": "intent.correlation_id"},
    unset=("origin",),
)
INTENT_FILTER: Final = MessageMapper(model.IntentFilter, audit_pb2.ListIntentsRequest)
WATCH_FILTER: Final = MessageMapper(model.IntentFilter, intents_pb2.WatchIntentsRequest, unset=("after",))
INTENT_RECORD: Final = MessageMapper(model.Intent, audit_pb2.IntentRecord, {"claimed_agent": claimed_agent_message})
CLOSING_REQUEST: Final = MessageMapper(ClosingRequest, intents_pb2.CloseIntentRequest)
CLOSING: Final = MessageMapper(model.IntentClosing, intents_pb2.IntentClosing)
TOLD_CLOSING: Final = MessageMapper(model.IntentClosing, intents_pb2.IntentClosing, unset=("decision_id",))
"""How an intent of another agent ended, without the resulting decision, which may be private."""
WATCHED_INTENT: Final = MessageMapper(model.Intent, intents_pb2.WatchedIntent, nested=(TOLD_CLOSING,))
RELATED_INTENT: Final = MessageMapper(
    RelatedIntent,
    intents_pb2.RelatedIntent,
    {"intent": lambda related: related.intent.intent or "", "allowed": "shared.allowed"},
    parts=("intent",),
    unset=("origin",),
    nested=(TOLD_CLOSING,),
)
