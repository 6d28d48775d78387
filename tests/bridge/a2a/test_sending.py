"""Messages and the tasks that answer them, over every binding."""

from __future__ import annotations

from typing import Any

import pytest

from bridge.a2a.message_parsing import MAX_ITEMS
from tests.bridge.a2a.bindings import Binding, Grpc, JsonRpc, OldGrpc, OldJsonRpc, sending, state_of
from tests.bridge.a2a.products import Product
from tests.bridge.a2a.refusals import assert_refused
from tests.bridge.a2a.talking import calling
from tests.bridge.a2a.tasks import INTENT, QUERY, announced, result_of
from tests.waiting import wait_until

MESSAGES = ("SendMessage", "SendStreamingMessage")


def test_a_text_is_announced(binding: Binding) -> None:
    reply = binding.send(INTENT)
    task = reply.task
    assert reply.state == "completed"
    result = result_of(task)
    assert (result["received"], result["correlationId"]) == (True, task["id"])
    assert task["artifacts"][0]["parts"][1]["text"].startswith("Allowed: ")
    assert task["status"]["message"]["parts"][0]["text"]
    assert announced(task) == {"intent": INTENT, "correlationId": task["id"]}
    (said,) = task["history"]
    assert (said["taskId"], said["contextId"], said["role"]) == (task["id"], task["contextId"], "ROLE_USER")
    assert [part["text"] for part in said["parts"]] == [INTENT]


def test_data_is_a_call_with_the_result_that_it_has_elsewhere(binding: Binding, product: Product) -> None:
    reply = binding.send(QUERY)
    assert reply.state == "completed"
    assert reply.task["artifacts"][0]["name"] == QUERY["method"]
    assert "metadata" not in reply.task
    elsewhere = product.core.call(QUERY["method"], QUERY["params"]).result
    assert elsewhere is not None
    result = result_of(reply.task)
    assert result.keys() == elsewhere.keys()
    timed = {"queryTimeMs": 0}
    assert {**result, **timed} == {**elsewhere, **timed}


def test_a_call_that_fails_is_a_task_that_says_why(binding: Binding) -> None:
    reply = binding.send(calling("cstp.queryDecisions", limit=-1))
    assert reply.state == "failed"
    assert not reply.task.get("artifacts")
    text, data = reply.task["status"]["message"]["parts"]
    error = data["data"]["error"]
    assert error["reason"] == "INVALID_ARGUMENT"
    assert text["text"] == f"Failed: {error['message']} (INVALID_ARGUMENT)"


def test_a_caller_that_does_not_wait_gets_the_task_submitted(binding: Binding) -> None:
    reply = binding.send(INTENT, at_once=True)
    assert reply.state == "submitted"
    assert not reply.task.get("artifacts")
    task_id = reply.task["id"]
    wait_until(lambda: binding.get(task_id).state == "completed", "the task is completed")
    assert result_of(binding.get(task_id).task)["correlationId"] == task_id


def test_the_artifact_has_what_the_caller_accepts(binding: Binding) -> None:
    (artifact,) = binding.send(INTENT, wanted={"acceptedOutputModes": ["text/plain"]}).task["artifacts"]
    assert [part.keys() & {"text", "data"} for part in artifact["parts"]] == [{"text"}]
    assert_refused(
        binding, binding.send(INTENT, wanted={"acceptedOutputModes": ["image/png"]}), "CONTENT_TYPE_NOT_SUPPORTED"
    )


def test_the_history_is_as_long_as_the_caller_wants(binding: Binding) -> None:
    task = binding.send(INTENT, wanted={"historyLength": 0}).task
    # Over gRPC, 0.3 cannot tell a number of 0 from none.
    assert bool(task.get("history")) is isinstance(binding, OldGrpc)
    assert len(binding.get(task["id"]).task["history"]) == 1
    assert_refused(binding, binding.send(INTENT, wanted={"historyLength": -1}), "INVALID_PARAMS")


@pytest.mark.parametrize("operation", MESSAGES)
@pytest.mark.parametrize("part", [{"raw": "eA=="}, {"url": "https://x.example"}], ids=["raw", "url"])
def test_files_are_not_taken(binding: Binding, operation: str, part: Any) -> None:
    params = sending(INTENT)
    params["message"]["parts"].append(part)
    assert_refused(binding, binding.perform(operation, params), "CONTENT_TYPE_NOT_SUPPORTED")


@pytest.mark.parametrize("operation", MESSAGES)
def test_a_message_of_endless_parts_is_refused(binding: Binding, operation: str) -> None:
    refusal = assert_refused(binding, binding.perform(operation, sending(*["x"] * (MAX_ITEMS + 1))), "INVALID_PARAMS")
    assert len(refusal.fields) == 1


@pytest.mark.parametrize("operation", MESSAGES)
def test_a_message_is_required(binding: Binding, operation: str) -> None:
    assert_refused(binding, binding.perform(operation, {}), "INVALID_PARAMS")


@pytest.mark.parametrize("binding", [JsonRpc, OldJsonRpc, Grpc, OldGrpc], indirect=True)
@pytest.mark.parametrize("operation", ["GetTask", "CancelTask", "SubscribeToTask"])
def test_the_id_of_a_task_is_required(binding: Binding, operation: str) -> None:
    """Over HTTP+JSON it is part of the path."""
    assert_refused(binding, binding.perform(operation, {}), "INVALID_PARAMS")


def test_work_is_streamed_from_its_start_to_its_end(binding: Binding) -> None:
    first, artifact, last = binding.stream(INTENT)
    assert [*first, *artifact, *last] == ["task", "artifactUpdate", "statusUpdate"]
    assert (state_of(first["task"]), state_of(last["statusUpdate"])) == ("working", "completed")
    assert artifact["artifactUpdate"]["lastChunk"] is True
    task = binding.get(first["task"]["id"]).task
    assert task["artifacts"] == [artifact["artifactUpdate"]["artifact"]]
    assert task["status"] == last["statusUpdate"]["status"]
    for update in (artifact["artifactUpdate"], last["statusUpdate"]):
        assert (update["taskId"], update["contextId"]) == (task["id"], task["contextId"])


def test_a_stream_of_what_fails_has_no_artifact(binding: Binding) -> None:
    _, last = binding.stream(calling("cstp.nothing"))
    assert state_of(last["statusUpdate"]) == "failed"


def test_no_sign_that_may_end_a_line_ends_an_event(binding: Binding) -> None:
    for line_break in ("\u2028", "\u2029", "\x85", "\x0b", "\r\n"):
        said = f"Deploy{line_break}today"
        first, *_ = binding.stream(said)
        assert first["task"]["history"][0]["parts"][0]["text"] == said
