"""What callers are told of invalid fields."""

from __future__ import annotations

import pytest
from google.protobuf.message import Message

from cstp_grpc.errors import FieldViolation, InvalidArgument
from cstp_grpc.gen.cstp.v1 import intents_pb2, journal_pb2
from cstp_grpc.server.call_handlers import RequestValidator


@pytest.mark.parametrize(
    ("request_message", "violation"),
    [
        (intents_pb2.CloseIntentRequest(correlation_id="c-1"), FieldViolation("outcome", "must be given")),
        (journal_pb2.GetDecisionRequest(), FieldViolation("id", "must not be empty")),
        (
            journal_pb2.LinkDecisionsRequest(id="dec-1", add=journal_pb2.Links(depends_on=[""])),
            FieldViolation("add.depends_on[0]", "must not be empty"),
        ),
    ],
)
def test_what_is_missing_is_said_to_be_missing(request_message: Message, violation: FieldViolation) -> None:
    with pytest.raises(InvalidArgument) as caught:
        RequestValidator(max_depth=2, max_values=10).validate(request_message)
    assert caught.value.violations == (violation,)
