"""Params of every operation of A2A, in the JSON of 1.0."""

from __future__ import annotations

from typing import Any

from tests.bridge.a2a.bindings import sending
from tests.bridge.a2a.tasks import INTENT

PARAMS: dict[str, list[Any]] = {
    "SendMessage": [sending(INTENT), sending({"not": "a call"}), sending(INTENT, taskId="none"), {}],
    "SendStreamingMessage": [sending(INTENT), sending(INTENT, taskId="none"), {}],
    "GetTask": [{"id": "none"}],
    "ListTasks": [{}, {"status": "TASK_STATE_AUTH_REQUIRED"}, {"pageSize": 1000}, {"pageToken": "none"}],
    "CancelTask": [{"id": "none"}],
    "SubscribeToTask": [{"id": "none"}],
    "CreateTaskPushNotificationConfig": [{"taskId": "none", "url": "https://x.example"}, {"taskId": "none"}],
    "GetTaskPushNotificationConfig": [{"taskId": "none", "id": "c"}],
    "ListTaskPushNotificationConfigs": [{"taskId": "none"}],
    "DeleteTaskPushNotificationConfig": [{"taskId": "none", "id": "c"}],
    "GetExtendedAgentCard": [{}],
}
"""Ways to call each operation, the first of them right."""
