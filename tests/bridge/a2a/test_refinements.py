"""Messages that refine an announcement, by their context and by references, over every binding."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.bridge.a2a.bindings import BINDINGS, Binding, OldGrpc, sending
from tests.bridge.a2a.products import Product
from tests.bridge.a2a.raw import URI
from tests.bridge.a2a.refusals import assert_refused
from tests.bridge.a2a.talking import READY
from tests.bridge.a2a.tasks import INTENT, QUERY, announced, result_of

REFERRING = pytest.mark.parametrize("binding", [kind for kind in BINDINGS if kind is not OldGrpc], indirect=True)
"""Messages of 0.3 over gRPC cannot name other tasks."""


def saying(**given: Any) -> dict[str, Any]:
    """Return the member of a message that says more of an intent."""
    return {"metadata": {URI: given}}


def test_new_facts_in_the_context_have_the_intent_judged_again(binding: Binding, product: Product) -> None:
    given = {"stakes": "high", "confidence": 0.9}
    blocked = binding.send(INTENT, **saying(**given, category="architecture", context={"affectsProduction": True}))
    assert blocked.state == "input-required"
    (violation, _) = result_of(blocked.task)["guardrailStatus"]["violations"]
    assert violation["guardrailId"] == "no-production-without-review"
    context = blocked.task["contextId"]
    binding.send(QUERY, contextId=context)
    done = {"codeReviewCompleted": True, "ciPassing": True}
    # Whichever bridge hears of them.
    passed = product.binding(type(binding), bridge=1).send("code review is done now", done, contextId=context)
    assert passed.state == "completed"
    assert (passed.task["contextId"], passed.task["id"] != blocked.task["id"]) == (context, True)
    assert announced(passed.task) == {
        "intent": INTENT,
        "context": "code review is done now",
        "metadata": READY,
        "category": "architecture",
        "correlationId": passed.task["id"],
        **given,
    }
    assert binding.get(passed.task["id"]).task == passed.task
    assert binding.get(blocked.task["id"]).task == blocked.task


def test_a_refinement_builds_on_the_latest_announcement(binding: Binding) -> None:
    context = str(uuid.uuid4())
    values = [
        announced(binding.send(*parts, contextId=context).task)["metadata"]
        for parts in (("The first", {"a": 1}), ({"b": 2},), ({"c": 3},))
    ]
    assert values == [{"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}]


def test_text_alone_in_a_context_is_a_new_intent(binding: Binding) -> None:
    first = binding.send(INTENT, {"affectsProduction": True}).task
    second = binding.send("Rename a variable", contextId=first["contextId"]).task
    assert second["contextId"] == first["contextId"]
    assert announced(second) == {"intent": "Rename a variable", "correlationId": second["id"]}


def test_a_context_id_of_the_callers_is_taken(binding: Binding) -> None:
    name = f"my context {uuid.uuid4()} \N{SNOWMAN}"
    task = binding.send(INTENT, {"a": 1}, contextId=name).task
    assert task["contextId"] == name
    assert announced(task)["metadata"] == {"a": 1}


def test_a_context_of_somebody_else_has_nothing_to_refine(binding: Binding) -> None:
    context = binding.send(INTENT).task["contextId"]
    refusal = assert_refused(binding, binding.send({"a": 1}, contextId=context, who="bob"), "INVALID_PARAMS")
    assert refusal.fields == ("message.parts",)


@REFERRING
def test_a_reference_refines_and_brings_its_context(binding: Binding) -> None:
    first = binding.send(INTENT, {"a": 1}).task
    other, query = binding.send("Another").task, binding.send(QUERY).task
    # What comes later in the context does not matter.
    binding.send("Something else", contextId=first["contextId"])
    refined = binding.send("Reviewed now", referenceTaskIds=[other["id"], first["id"], query["id"]]).task
    assert refined["contextId"] == first["contextId"]
    assert announced(refined) == {
        "intent": INTENT,
        "context": "Reviewed now",
        "metadata": {"a": 1},
        "correlationId": refined["id"],
    }


@REFERRING
def test_a_reference_to_a_call_brings_its_context_only(binding: Binding) -> None:
    query = binding.send(QUERY).task
    task = binding.send(INTENT, referenceTaskIds=[query["id"]]).task
    assert (task["contextId"], announced(task)["intent"]) == (query["contextId"], INTENT)


@REFERRING
def test_references_must_be_the_callers_and_of_the_context(binding: Binding) -> None:
    task_id = binding.send(INTENT).task["id"]
    assert_refused(binding, binding.send("More", referenceTaskIds=[task_id], who="bob"), "TASK_NOT_FOUND")
    assert_refused(binding, binding.send("More", referenceTaskIds=["none", task_id]), "TASK_NOT_FOUND")
    assert_refused(binding, binding.send("More", referenceTaskIds=[task_id], contextId="another"), "INVALID_PARAMS")


def test_a_task_that_has_ended_takes_no_second_message(binding: Binding) -> None:
    task = binding.send(INTENT).task
    about = {"taskId": task["id"]}
    assert_refused(binding, binding.send("More", **about), "UNSUPPORTED_OPERATION")
    assert_refused(binding, binding.send("More", **about, contextId=task["contextId"]), "UNSUPPORTED_OPERATION")
    assert_refused(binding, binding.send("More", **about, contextId="another"), "INVALID_PARAMS")
    assert_refused(binding, binding.send("More", **about, who="bob"), "TASK_NOT_FOUND")
    streamed = binding.perform("SendStreamingMessage", sending("More", **about))
    assert_refused(binding, streamed, "UNSUPPORTED_OPERATION")
