"""What the gRPC server's refusals of push configurations are to A2A."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from a2a.utils.errors import A2AError, PushNotificationNotSupportedError, TaskNotFoundError

from bridge.a2a.errors import Refused, invalid_params
from bridge.status import Failure, summary

INLINE: Final = "configuration.taskPushNotificationConfig"
"""Where a message holds a configuration."""
CONFIG: Final = "pushConfig"
MOVED: Final[Mapping[str, str]] = {
    "scheme": "authentication.scheme",
    "credentials": "authentication.credentials",
}
"""Fields of a configuration that A2A has elsewhere than the server does."""


def push_error(failure: Failure, place: str = "") -> A2AError:
    """Return the error of a call that has to do with a push configuration, which the request holds at `place`."""
    if failure.reason == "METHOD_NOT_FOUND":
        return PushNotificationNotSupportedError()
    if failure.reason == "NOT_FOUND":
        return TaskNotFoundError()
    fields = failure.wrong_fields
    if failure.reason != "INVALID_ARGUMENT" or not fields:
        return Refused(failure)
    if any(field == "taskId" for field, _ in fields):
        # An id that cannot be one is the id of no task.
        return TaskNotFoundError()
    named = [(place_of(field, place), description) for field, description in fields]
    return invalid_params(summary(named), *named)


def place_of(field: str, place: str) -> str:
    """Return where a request of A2A holds a field of the server's request."""
    outer, _, inner = field.partition(".")
    if outer != CONFIG:
        return field
    return ".".join(part for part in (place, MOVED.get(inner, inner)) if part) or "params"
