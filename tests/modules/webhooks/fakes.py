"""What notifications are given to in tests, without a network."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from typing import Any

from cstp_grpc.core.audit.model import AuditEntry, NullAuditSink
from cstp_grpc.modules.webhooks.delivery import WebhookRequest, WebhookUrl
from cstp_grpc.platform.storage.unit_of_work import UnitOfWork
from tests.waiting import SECONDS


class FakeWebhookClient:
    """Takes what it is given, or raises what it is told to first."""

    def __init__(self, *problems: Exception | None, always: Exception | None = None) -> None:
        self.problems = list(problems)
        self.always = always
        self.posted: list[tuple[WebhookUrl, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.may_answer = threading.Event()
        self.may_answer.set()

    def post(self, request: WebhookRequest) -> None:
        self.posted.append((request.address, json.loads(request.body())))
        self.headers.append(request.headers)
        assert self.may_answer.wait(SECONDS)
        problem = self.problems.pop(0) if self.problems else self.always
        if problem is not None:
            raise problem

    @property
    def params(self) -> list[dict[str, Any]]:
        return [body["params"] for _, body in self.posted]


class Trail(NullAuditSink):
    """Keeps the entries of the transactions, committed or not."""

    def __init__(self) -> None:
        self.entries: list[AuditEntry] = []

    def append(self, unit_of_work: UnitOfWork, entry: AuditEntry) -> None:
        self.entries.append(entry)
