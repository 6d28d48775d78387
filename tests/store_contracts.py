"""Which tests prove which methods of stores: those marked `contract` with their names, such as `TaskStore.add`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from cstp_grpc.audit.sql_trail import AuditStore, SqlAuditStore
from cstp_grpc.callbacks.model import CallbackStore
from cstp_grpc.callbacks.sql_store import SqlCallbackStore
from cstp_grpc.decisions.sql_store import SqlDecisionStore
from cstp_grpc.decisions.store import DecisionStore
from cstp_grpc.intents.model import IntentStore
from cstp_grpc.intents.sql_store import SqlIntentStore
from cstp_grpc.liaison.erasure import ErasureStore
from cstp_grpc.liaison.sql_erasure import SqlErasureStore
from cstp_grpc.liaison.sql_presence import SqlPresenceStore
from cstp_grpc.liaison.sql_routing import SqlRoutingStore
from cstp_grpc.liaison.sql_sessions import SqlSessionStore
from cstp_grpc.liaison.store import PresenceStore, RoutingStore, SessionStore
from cstp_grpc.tasks.model import PushStore, TaskStore
from cstp_grpc.tasks.sql_push_store import SqlPushStore
from cstp_grpc.tasks.sql_store import SqlTaskStore

STORES: dict[type, type] = {
    AuditStore: SqlAuditStore,
    CallbackStore: SqlCallbackStore,
    DecisionStore: SqlDecisionStore,
    ErasureStore: SqlErasureStore,
    IntentStore: SqlIntentStore,
    PresenceStore: SqlPresenceStore,
    PushStore: SqlPushStore,
    RoutingStore: SqlRoutingStore,
    SessionStore: SqlSessionStore,
    TaskStore: SqlTaskStore,
}
"""The driver of each store."""


def store_methods() -> dict[str, tuple[type, str]]:
    """Return the driver and the name of each method of a store, by the names that tests are marked with."""
    return {
        f"{store.__name__}.{name}": (driver, name)
        for store, driver in STORES.items()
        for name, member in vars(store).items()
        if callable(member) and not name.startswith("_")
    }


@contextmanager
def observe_calls(names: Sequence[str]) -> Iterator[None]:
    """Fail after the block unless it called each of some methods."""
    methods = store_methods()
    missing = set(names)
    with ExitStack() as patched:
        for name in names:
            driver, attribute = methods[name]
            observed = call_through(getattr(driver, attribute), functools.partial(missing.discard, name))
            patched.enter_context(patch.object(driver, attribute, observed))
        yield
    assert not missing, "the test is marked as the contract of these and does not call them"


def call_through(function: Callable[..., Any], told: Callable[[], None]) -> Callable[..., Any]:
    """Return a function that does the same and tells that it was called."""

    @functools.wraps(function)
    def observed(*arguments: Any, **options: Any) -> Any:
        told()
        return function(*arguments, **options)

    return observed
