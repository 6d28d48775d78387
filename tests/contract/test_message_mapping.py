"""Mappers between dataclasses and messages: every pair of the product, and what they refuse."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pkgutil
import typing
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hypothesis import given
from hypothesis import strategies as st

import cstp_grpc
from cstp_grpc.contract import proto_values
from cstp_grpc.contract.enums import Outcome, Stakes
from cstp_grpc.contract.message_mapping import MessageMapper, allows_none, bare_type
from cstp_grpc.core.guardrails.cel_variables import RuleExpression
from cstp_grpc.gen.cstp.v1 import cstp_pb2, intents_pb2, tasks_pb2, types_pb2
from cstp_grpc.modules.liaison.presence import ListedAgent
from cstp_grpc.modules.liaison.servicer import AGENT_KINDS

JSON_VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
SCALARS: Mapping[Any, st.SearchStrategy[Any]] = {
    bool: st.booleans(),
    bytes: st.binary(min_size=1),
    # Not empty, because an empty text and an absent one are the same in a field without presence.
    str: st.text(st.characters(exclude_categories=["Cs"]), min_size=1),
    int: st.integers(1, 2**20),
    float: st.floats(1, 1e9),
    datetime: st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)).map(lambda moment: moment.replace(tzinfo=UTC)),
}


def find_mappers() -> Mapping[str, MessageMapper[Any, Any]]:
    """Return all mappers of the product by their module and name."""
    found: dict[MessageMapper[Any, Any], str] = {}
    for module in pkgutil.walk_packages(cstp_grpc.__path__, "cstp_grpc."):
        if module.name.rpartition(".")[2] in {"messages", "peer_responses", "servicer"}:
            members = vars(importlib.import_module(module.name)).items()
            for name, each in members:
                if isinstance(each, MessageMapper):
                    found.setdefault(each, f"{module.name}.{name}")
    return {name: each for each, name in found.items()}


MAPPERS = find_mappers()


def values_of(hint: Any, owners: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Return values of a type; None for types that no message has, and nothing inside itself of one of `owners`."""
    if allows_none(hint):
        return st.none() | values_of(bare_type(hint), owners)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        if hint is RuleExpression:
            return st.none()
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            return st.sampled_from(hint)
        return models(hint, owners) if hasattr(hint, "__dataclass_fields__") else SCALARS.get(hint, st.none())
    if issubclass(origin, Mapping):
        return st.dictionaries(SCALARS[str], JSON_VALUES, max_size=2)
    if arguments[0] in owners:
        return st.just(())
    items = values_of(arguments[0], owners)
    if len(arguments) == 2 and arguments[1] is not ...:
        return st.tuples(items, values_of(arguments[1], owners))
    return st.lists(items, min_size=1, max_size=2).map(frozenset if issubclass(origin, frozenset) else tuple)


@functools.cache
def models(model: Any, owners: tuple[Any, ...] = ()) -> st.SearchStrategy[Any]:
    """Return instances of a dataclass."""
    hints = typing.get_type_hints(model)
    fields = dataclasses.fields(model)
    values = {each.name: values_of(hints[each.name], (*owners, model)) for each in fields}
    if model is ListedAgent:
        values["kind"] = st.sampled_from(sorted(AGENT_KINDS))
    return st.builds(model, **values)


def is_compiled(mapper: MessageMapper[Any, Any], direction: str) -> bool:
    try:
        getattr(mapper, direction)
    except TypeError:
        return False
    return True


def plain_fields(mapper: MessageMapper[Any, Any], item: Any) -> dict[str, Any]:
    """Return the fields of the message for an item as `build_message` takes them, found by reflection."""
    found: dict[str, Any] = {}
    for field in mapper.descriptor.fields:
        if field.name in mapper.given or field.name in mapper.unset:
            continue
        source = mapper.source_of(field.name)
        assert source is not None
        value = source(item) if callable(source) else item
        for name in [] if callable(source) else source.split("."):
            value = None if value is None else getattr(value, name)
        found[field.name] = plain_value(mapper, field, value)
    return found


def plain_value(mapper: MessageMapper[Any, Any], field: FieldDescriptor, value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        assert field.message_type is not None
        return plain_fields(mapper.mapper_below(type(value), field.message_type), value)
    if isinstance(value, frozenset):
        value = tuple(sorted(value))
    if isinstance(value, tuple):
        return [plain_value(mapper, field, each) for each in value]
    if field.enum_type and isinstance(value, int):
        prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
        return field.enum_type.values_by_number[value].name.removeprefix(prefix)
    return value.name if field.enum_type and isinstance(value, StrEnum) else value


ENCODERS = {name: mapper for name, mapper in MAPPERS.items() if is_compiled(mapper, "encode")}
TWO_WAY = {name: mapper for name, mapper in ENCODERS.items() if is_compiled(mapper, "decode")}


def test_every_mapper_has_a_direction() -> None:
    assert len(MAPPERS) > 30
    assert [name for name, each in MAPPERS.items() if name not in ENCODERS and not is_compiled(each, "decode")] == []


@pytest.mark.parametrize("name", sorted(ENCODERS))
@given(data=st.data())
def test_a_message_has_the_values_of_its_model(name: str, data: st.DataObject) -> None:
    mapper = ENCODERS[name]
    item = data.draw(models(mapper.model))
    assert mapper.encode(item) == proto_values.build_message(mapper.message, plain_fields(mapper, item))


@pytest.mark.parametrize("name", sorted(TWO_WAY))
@given(data=st.data())
def test_a_message_survives_the_way_to_a_model_and_back(name: str, data: st.DataObject) -> None:
    mapper = TWO_WAY[name]
    item = data.draw(models(mapper.model))
    message = mapper.encode(item)
    names = {each.name for each in dataclasses.fields(mapper.model)}
    again = mapper.decode(message, **{each: getattr(item, each) for each in mapper.given if each in names})
    assert mapper.encode(again) == message


@dataclasses.dataclass
class Totals:
    totals: dict[str, int]


@dataclasses.dataclass
class Waiting:
    time_left: timedelta | None = None


@dataclasses.dataclass
class Filters:
    stakes: frozenset[Stakes] = frozenset()
    min_confidence: float = 0.5
    project: str | None = None


@dataclasses.dataclass
class Closing:
    outcome: Outcome = Outcome.PARTIAL
    notes: int | None = None


def test_maps_survive_both_ways() -> None:
    others = [each.name for each in cstp_pb2.QueryDecisionsResponse.DESCRIPTOR.fields if each.name != "totals"]
    totals = MessageMapper(Totals, cstp_pb2.QueryDecisionsResponse, unset=others)
    assert totals.decode(totals.encode(Totals({"a": 1, "b": 2}))) == Totals({"a": 1, "b": 2})


@pytest.mark.parametrize("time_left", [None, timedelta(0), timedelta(minutes=5, microseconds=1)])
def test_durations_survive_both_ways(time_left: timedelta | None) -> None:
    waiting = MessageMapper(
        Waiting, tasks_pb2.SaveTaskRequest, unset=("task", "version", "push_config", "method", "in_reply_to")
    )
    assert waiting.decode(waiting.encode(Waiting(time_left))) == Waiting(time_left)


def test_an_absent_field_is_the_default_of_the_model() -> None:
    filters = MessageMapper(Filters, types_pb2.DecisionFilters)
    assert filters.decode(types_pb2.DecisionFilters()) == Filters(frozenset(), 0.5, None)
    assert filters.decode(types_pb2.DecisionFilters(min_confidence=0)) == Filters(frozenset(), 0.0, None)


def test_an_unspecified_enum_is_the_default_of_the_model() -> None:
    closing = MessageMapper(Closing, intents_pb2.IntentClosing, unset=("notes",))
    assert closing.decode(intents_pb2.IntentClosing()).outcome is Outcome.PARTIAL


@pytest.mark.parametrize(
    ("mapper", "reason"),
    [
        (MessageMapper(Waiting, intents_pb2.IntentClosing), "the model has no closed_at"),
        (MessageMapper(Closing, intents_pb2.IntentClosing, unset=("closed_at", "decision_id")), "notes cannot be a"),
    ],
)
def test_a_model_that_does_not_fit_its_message_is_refused(mapper: MessageMapper[Any, Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        mapper.encode(Closing())


def test_a_message_that_does_not_fit_its_model_is_refused() -> None:
    with pytest.raises(TypeError, match="the message has no totals"):
        MessageMapper(Totals, intents_pb2.IntentClosing).decode(intents_pb2.IntentClosing())
