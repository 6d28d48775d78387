"""The operations on push notifications, which there are none of here."""

from __future__ import annotations

from abc import abstractmethod

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types.a2a_pb2 import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    TaskPushNotificationConfig,
)
from a2a.utils.errors import PushNotificationNotSupportedError

# ruff: noqa: ARG002 - the parameters are those of the SDK's interface


class WithoutPush(RequestHandler):
    """Refuses whatever is about push notifications."""

    @abstractmethod
    def admit(self, context: ServerCallContext) -> None:
        """Refuse callers that may not ask for anything. Raises A2AError."""

    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Refuse to create a configuration."""
        self.admit(context)
        raise PushNotificationNotSupportedError

    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Refuse to look for a configuration."""
        self.admit(context)
        raise PushNotificationNotSupportedError

    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """Refuse to list configurations."""
        self.admit(context)
        raise PushNotificationNotSupportedError

    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Refuse to delete a configuration."""
        self.admit(context)
        raise PushNotificationNotSupportedError
