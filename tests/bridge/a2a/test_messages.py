from __future__ import annotations

from typing import Any

import pytest
from a2a.types.a2a_pb2 import Message, Part, Role, Task
from a2a.utils.errors import A2AError, ContentTypeNotSupportedError, InvalidParamsError
from google.protobuf import json_format
from google.protobuf.struct_pb2 import Struct, Value
from hypothesis import given as given_any
from hypothesis import settings
from hypothesis import strategies as st

from bridge.a2a import message_parsing
from bridge.a2a.message_parsing import IntentAnnouncement, MethodCall, announced_params, build_request, parse_message
from cstp_grpc.contract.json_values import render_struct
from tests.bridge.a2a.talking import URI, calling, message
from tests.example_counts import examples

EARLIER: dict[str, object] = {
    "intent": "Deploy auth",
    "context": "first words",
    "category": "deployment",
    "stakes": "low",
    "confidence": 0.5,
    "correlationId": "the-first",
    "metadata": {"affectsProduction": True, "ciPassing": False},
}
PLACE = f'message.metadata["{URI}"]'


def asked(*parts: Any, earlier: dict[str, object] | None = None, **members: Any) -> IntentAnnouncement | MethodCall:
    return build_request(parse_message(message(*parts, **members)), earlier)


def place_in(error: A2AError) -> str:
    assert error.data is not None
    place = error.data["errors"][0]["field"]
    assert error.message.startswith(f"{place}: ")
    return str(place)


def refused(*parts: Any, **members: Any) -> str:
    """Return the place that a message is refused for."""
    with pytest.raises(InvalidParamsError) as caught:
        asked(*parts, **members)
    return place_in(caught.value)


def test_text_is_an_intent() -> None:
    assert asked("Deploy auth").params == {"intent": "Deploy auth"}


def test_texts_are_joined_by_lines_and_blank_ones_left_out() -> None:
    assert asked("Deploy auth", " \n", "to production").params == {"intent": "Deploy auth\nto production"}


def test_data_without_a_method_is_context_for_the_guardrails() -> None:
    found = asked({"a": 1, "b": 1}, "Deploy", {"b": 2.5})
    assert found.params == {"intent": "Deploy", "metadata": {"a": 1, "b": 2.5}}


def test_whole_numbers_stay_whole() -> None:
    found = asked(calling("cstp.queryDecisions", query="x", limit=3, minScore=0.5))
    assert [type(found.params["limit"]), type(found.params["minScore"])] == [int, float]


def test_data_with_a_method_is_that_call() -> None:
    assert asked(calling("cstp.any", query="x")) == MethodCall("cstp.any", {"query": "x"})


@pytest.mark.parametrize("call", [{"method": "cstp.any"}, {"method": "cstp.any", "params": None}])
def test_a_call_needs_no_params(call: dict[str, Any]) -> None:
    assert asked(call) == MethodCall("cstp.any", {})


@pytest.mark.parametrize("method", ["cstp.createToken", "cstp.rotateToken"])
def test_a_call_whose_answer_is_a_secret_is_refused_since_tasks_keep_answers(method: str) -> None:
    assert refused(calling(method, requestId="r")) == "message.parts[0].data.method"


def test_metadata_says_more_of_an_intent() -> None:
    given = {
        "category": "deployment",
        "stakes": "high",
        "confidence": 0.9,
        "correlationId": "mine",
        "context": "at noon",
    }
    assert asked("Deploy", given=given).params == {"intent": "Deploy", **given}


def test_context_may_be_an_object_for_the_guardrails_and_data_parts_have_the_last_word() -> None:
    given = {"metadata": {"a": 1, "b": 1, "c": 1}, "context": {"b": 2, "c": 2}}
    assert asked("Deploy", {"c": 3}, given=given).params == {"intent": "Deploy", "metadata": {"a": 1, "b": 2, "c": 3}}


def test_null_means_absent_in_metadata() -> None:
    assert asked("Deploy", given={"stakes": None, "context": None}).params == {"intent": "Deploy"}


def test_unknown_params_are_left_to_the_server_with_their_place() -> None:
    found = asked("Deploy", given={"stake": "high"})
    assert isinstance(found, IntentAnnouncement)
    assert (found.params["stake"], found.places["stake"]) == ("high", f"{PLACE}.stake")


def test_a_refinement_adds_words_and_puts_data_over_data() -> None:
    given = {"stakes": "high", "metadata": {"more": 1}}
    found = asked("Reviewed now", {"ciPassing": True}, given=given, earlier=EARLIER)
    assert found.params == {
        "intent": "Deploy auth",
        "context": "first words\nReviewed now",
        "category": "deployment",
        "stakes": "high",
        "confidence": 0.5,
        "metadata": {"affectsProduction": True, "ciPassing": True, "more": 1},
    }
    assert EARLIER["correlationId"] == "the-first"


def test_a_refinement_may_be_of_data_alone() -> None:
    found = asked({"ciPassing": True}, earlier=EARLIER)
    assert (found.params["intent"], found.params["context"]) == ("Deploy auth", "first words")


def test_a_refinement_may_have_a_correlation_id_of_its_own() -> None:
    assert asked("More", given={"correlationId": "second"}, earlier=EARLIER).params["correlationId"] == "second"


def test_a_refinement_of_what_was_never_right_keeps_to_what_can_be_used() -> None:
    found = asked("More", {"a": 1}, earlier={"intent": "Deploy", "context": 5, "metadata": "none"})
    assert found.params == {"intent": "Deploy", "context": "More", "metadata": {"a": 1}}


def test_a_call_refines_nothing() -> None:
    assert asked({"method": "cstp.any"}, earlier=EARLIER) == MethodCall("cstp.any", {})


def test_an_intent_is_needed() -> None:
    assert refused({"ciPassing": True}) == "message.parts"
    assert refused("  ") == "message.parts"


@pytest.mark.parametrize(
    ("parts", "place"),
    [
        (({"method": 5},), "message.parts[0].data.method"),
        (({"method": "m", "params": [1]},), "message.parts[0].data.params"),
        (("  ", {"method": "m", "id": 1}), "message.parts[1].data.id"),
        (([1],), "message.parts[0].data"),
        (("Deploy", {"method": "m"}), "message.parts"),
        (({"method": "m"}, {"method": "n"}), "message.parts[1].data"),
        (({"a": 1}, {"method": "m"}), "message.parts[0].data"),
    ],
)
def test_what_is_neither_one_call_nor_an_intent_is_refused_by_its_place(parts: tuple[Any, ...], place: str) -> None:
    assert refused(*parts) == place


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("high", PLACE),
        ({"intent": "x"}, f"{PLACE}.intent"),
        ({"context": 5}, f"{PLACE}.context"),
        ({"metadata": []}, f"{PLACE}.metadata"),
    ],
)
def test_metadata_that_is_no_params_is_refused_by_its_place(given: object, place: str) -> None:
    assert refused("Deploy", given=given) == place


def test_params_for_an_announcement_beside_a_call_are_refused() -> None:
    assert refused({"method": "m"}, given={"stakes": "high"}) == PLACE


def test_only_users_are_listened_to() -> None:
    assert refused("Deploy", role="ROLE_AGENT") == "message.role"


def test_a_context_id_is_not_endless() -> None:
    assert asked("Deploy", contextId="c" * 200).params
    assert refused("Deploy", contextId="c" * 201) == "message.contextId"


def test_references_are_not_endless() -> None:
    assert refused("Deploy", referenceTaskIds=["t"] * 11) == "message.referenceTaskIds"


def test_a_part_must_hold_something() -> None:
    nothing = Message(message_id="m", role=Role.ROLE_USER, parts=[Part(media_type="text/plain")])
    with pytest.raises(InvalidParamsError) as caught:
        parse_message(nothing)
    assert place_in(caught.value) == "message.parts[0]"


@pytest.mark.parametrize("where", ["data", "part", "message"])
def test_what_is_no_json_is_refused(where: str) -> None:
    said = message("Deploy", {"a": 1})
    target = {"data": said.parts[1].data.struct_value, "part": said.parts[0].metadata, "message": said.metadata}[where]
    target.fields["n"].number_value = float("nan")
    with pytest.raises(InvalidParamsError, match="NaN"):
        parse_message(said)


def nested(levels: int) -> dict[str, Any]:
    return {"a": nested(levels - 1)} if levels > 1 else {}


def test_structures_are_not_nested_endlessly() -> None:
    assert asked("Deploy", nested(26))
    assert refused("Deploy", nested(27)) == "message.parts[1].data"


@pytest.mark.parametrize(
    "part",
    [
        Part(raw=b"1"),
        Part(url="https://example.com"),
        Part(text="x", media_type="text/markdown"),
        Part(text="x", media_type="application/json"),
        Part(data=Value(bool_value=True), media_type="text/plain"),
        Part(raw=b"{}", media_type="application/json"),
    ],
)
def test_files_and_undeclared_media_types_are_not_supported(part: Part) -> None:
    with pytest.raises(ContentTypeNotSupportedError):
        parse_message(Message(message_id="m", role=Role.ROLE_USER, parts=[part]))


def test_media_types_may_have_parameters() -> None:
    part = Part(text="Deploy", media_type="Text/Plain; charset=utf-8")
    assert parse_message(Message(message_id="m", role=Role.ROLE_USER, parts=[part])).text == "Deploy"


@pytest.mark.parametrize(
    ("accepted", "expected"),
    [
        ([], {"text/plain", "application/json"}),
        (["*/*"], {"text/plain", "application/json"}),
        (["text/*", "image/png"], {"text/plain"}),
        (["Application/JSON; q=1"], {"application/json"}),
        (["text"], {"text/plain"}),
    ],
)
def test_the_caller_chooses_media_types(accepted: list[str], expected: set[str]) -> None:
    assert message_parsing.select_output_types(accepted) == expected


def test_no_media_type_in_common_is_an_error() -> None:
    with pytest.raises(ContentTypeNotSupportedError, match="image/png"):
        message_parsing.select_output_types(["image/png"])


@pytest.mark.parametrize("kept", ["text", {"method": "cstp.other", "params": {}}, {"method": "cstp.announceIntent"}])
def test_a_task_about_something_else_is_no_announcement(kept: object) -> None:
    task = json_format.ParseDict({"metadata": {URI: kept}}, Task())
    assert announced_params(task) is None


texts = st.text(max_size=8)
finite = st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | texts
scalars = st.none() | st.booleans() | st.floats(width=32) | texts
structures = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            texts | st.sampled_from(["method", "params", "context", "metadata", "intent", URI]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


def to_value(content: object) -> Value:
    """Return any structure as a value, also one that is no JSON."""
    value = Value()
    if isinstance(content, dict):
        value.struct_value.SetInParent()
        for key, item in content.items():
            value.struct_value.fields[key].CopyFrom(to_value(item))
    elif isinstance(content, list):
        value.list_value.values.extend(map(to_value, content))
    elif isinstance(content, bool):
        value.bool_value = content
    elif isinstance(content, float):
        value.number_value = content
    elif isinstance(content, str):
        value.string_value = content
    return value


media_types = st.sampled_from(["", "text/plain", "application/json", "image/png"])
any_part = st.one_of(
    st.builds(lambda text, kind: Part(text=text, media_type=kind), texts, media_types),
    st.builds(lambda data, kind: Part(data=to_value(data), media_type=kind), structures, media_types),
    st.builds(lambda raw: Part(raw=raw), st.binary(max_size=4)),
    st.just(Part()),
)


@st.composite
def any_message(draw: st.DrawFn) -> Message:
    said = Message(
        role=draw(st.sampled_from([Role.ROLE_USER] * 5 + [Role.ROLE_AGENT])), parts=draw(st.lists(any_part, max_size=3))
    )
    given = draw(st.none() | structures)
    if given is not None:
        said.metadata.fields[URI].CopyFrom(to_value(given))
    return said


@settings(max_examples=examples(300), deadline=None)
@given_any(any_message(), st.none() | st.dictionaries(texts, finite, max_size=3))
def test_any_message_asks_for_something_or_is_refused(said: Message, earlier: dict[str, object] | None) -> None:
    try:
        found = build_request(parse_message(said), earlier)
    except A2AError:
        return
    assert isinstance(found, (IntentAnnouncement, MethodCall))
    # What is asked for can be kept with its task.
    assert render_struct(json_format.ParseDict(found.params, Struct())) == found.params
