"""The settings of webhooks that are notified of approvals, blocked actions and failed verifications."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr, field_validator

from cstp_grpc.contract.enums import Stakes
from cstp_grpc.platform.config.settings_section import SettingsSection

NoticeEventWord = Literal["approval_requested", "approval_decided", "action_blocked", "verification_failed"]


class NotifiedWebhookSettings(SettingsSection):
    """A webhook, and the events that it is notified of."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """The name of the webhook in the log and in the audit trail."""
    url: SecretStr
    """Its `https` or `http` URL; write `${NAME}` to take it from the environment, since it often contains a secret."""
    format: Literal["json", "slack"] = "json"
    """The form of the documents: `json` has all members, `slack` is a text for incoming webhooks of Slack, Mattermost
    and others."""
    events: list[NoticeEventWord] = Field(
        default=["approval_requested", "approval_decided", "action_blocked", "verification_failed"], min_length=1
    )
    """The events that it is notified of."""
    stakes: list[Stakes] = Field(default=[Stakes.HIGH, Stakes.CRITICAL], min_length=1)
    """The stakes of blocked actions that it is notified of."""
    categories: list[Annotated[str, Field(min_length=1, max_length=100)]] = []
    """The categories of blocked actions that it is notified of; empty means all."""
    secret: SecretStr | None = Field(default=None, min_length=16)
    """A secret that signs the documents: `x-cstp-signature` is `sha256=` and their HMAC-SHA-256 in hexadecimal digits.
    """
    any_address: bool = False
    """True permits hosts with private addresses, such as a chat server in your own network."""
    max_per_hour: int = Field(default=120, ge=1, le=10_000)
    """The maximum number of notices an hour for each event, from each server process; half of them for one agent. The
    next notice states how many were left out."""


class NotificationSettings(SettingsSection):
    """Webhooks that are notified of approvals, blocked actions and failed verifications."""

    webhooks: list[NotifiedWebhookSettings] = Field(default=[], max_length=32)
    """The webhooks."""
    delivery_hours: float = Field(default=24.0, gt=0, le=8760)
    """How long the delivery of a notice is retried before it is given up."""

    @field_validator("webhooks")
    @classmethod
    def check_names(cls, webhooks: list[NotifiedWebhookSettings]) -> list[NotifiedWebhookSettings]:
        names = [webhook.name for webhook in webhooks]
        if duplicates := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"named more than once: {', '.join(duplicates)}")
        return webhooks
