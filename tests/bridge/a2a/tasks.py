"""What tests say to get a task, and what they read in one, in the JSON of 1.0."""

from __future__ import annotations

from typing import Any

from tests.bridge.a2a.raw import URI
from tests.bridge.a2a.talking import calling

INTENT = "Deploy the payment service to production"
QUERY = calling("cstp.queryDecisions", query="payment service")


def result_of(task: Any) -> Any:
    """Return the result in the task's one artifact, whose other part is for reading."""
    (artifact,) = task["artifacts"]
    data, text = artifact["parts"]
    assert text["text"]
    return data["data"]


def announced(task: Any) -> Any:
    """Return the params of the announcement that the task is about."""
    call = task["metadata"][URI]
    assert call["method"] == "cstp.announceIntent"
    return call["params"]
