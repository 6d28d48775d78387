"""What the server raises, as its callers catch it over either transport."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from cstp_grpc.client import CstpClient, RetryPolicy
from cstp_grpc.contract.errors import BlockingGuardrail, CstpError, FieldViolation
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.platform.config import ServerSettings
from cstp_grpc.server.interceptors.error_status import to_status
from tests.bridge.support import TOKEN, Client, Play, Scripted, bridging, serving
from tests.error_classes import SERVER_ERRORS
from tests.example_counts import examples
from tests.named_case import named_case

ROUTE = contract_methods()["liaison.routeToLiaisonAgent"]

texts = st.text(st.characters(codec="utf-8"), max_size=40)
names = st.from_regex(r"[a-z_]{1,20}", fullmatch=True).filter(lambda name: name != "requestId")
failures = st.builds(
    lambda kind, message, **details: kind(message, **details),
    st.sampled_from(SERVER_ERRORS),
    texts,
    metadata=st.dictionaries(names, texts, max_size=3),
    violations=st.lists(
        st.builds(FieldViolation, st.sampled_from(["target_pillar", "chat_session_id"]), texts), max_size=3
    ),
    blocks=st.lists(st.builds(BlockingGuardrail, texts, texts, texts), max_size=3),
    retry_after=st.none() | st.integers(0, 100_000).map(lambda milliseconds: milliseconds / 1000),
)


class Raising:
    """A server that raises what it is told, and callers of it over each transport."""

    def __init__(self, server: Scripted, clients: list[CstpClient]) -> None:
        self._server = server
        self._clients = clients

    def caught(self, failure: CstpError) -> list[CstpError]:
        """Return the error that each caller catches."""
        self._server.plays[ROUTE.name] = raising(failure)
        return [catch(client) for client in self._clients]


def raising(failure: CstpError) -> Play:
    def play(request: Message, context: grpc.ServicerContext) -> Message:
        return context.abort_with_status(to_status(failure, "r-1"))

    return play


def catch(client: CstpClient) -> CstpError:
    with pytest.raises(CstpError) as caught:
        client.call(ROUTE, ROUTE.request())
    return caught.value


@pytest.fixture(scope="module")
def raised() -> Iterator[Raising]:
    scripted = Scripted()
    scripted.reset()
    once = RetryPolicy(attempts=1)
    with ExitStack() as stack:
        target = stack.enter_context(serving(scripted))
        bridge: Client = stack.enter_context(bridging(target, ServerSettings()))
        addresses = (f"grpc://{target}", f"http://{bridge.host}:{bridge.port}")
        clients = [stack.enter_context(CstpClient(address, TOKEN, retries=once)) for address in addresses]
        yield Raising(scripted, clients)


def test_every_failure_is_the_same_exception_over_both_transports(raised: Raising) -> None:
    for kind in SERVER_ERRORS:
        with named_case(kind):
            for failure in raised.caught(kind("In plain words", metadata={"target_pillar": "content"})):
                assert type(failure) is kind
                assert failure.message == "In plain words"
                assert failure.metadata == {"target_pillar": "content", "requestId": "r-1"}


@hypothesis_settings(max_examples=examples(60), deadline=None)
@given(failures)
def test_all_that_a_failure_says_arrives_over_both_transports(raised: Raising, failure: CstpError) -> None:
    for found in raised.caught(failure):
        assert type(found) is type(failure)
        assert found.message == failure.message
        assert found.metadata == {**failure.metadata, "requestId": "r-1"}
        assert found.violations == failure.violations
        assert found.blocks == failure.blocks
        assert found.retry_after == failure.retry_after
