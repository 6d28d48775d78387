"""An agent without a server: the modules on a data folder, called through the same handlers as over gRPC.

Several processes may use a folder at once, as workers of one server do: they write in turns, and check before each call
whether others have written. A server needs the folder for itself.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from cstp_grpc.client.grpc_transport import client_closed_error
from cstp_grpc.client.http_client import is_public
from cstp_grpc.contract.caller import Caller, current_caller
from cstp_grpc.contract.enums import Permission
from cstp_grpc.contract.errors import MethodNotFound, QueryFailed
from cstp_grpc.contract.methods import RpcMethod
from cstp_grpc.platform.config import Settings, forbid_telemetry
from cstp_grpc.platform.storage.change_watch import DatabaseVersion
from cstp_grpc.platform.storage.database import Database, translate_read_errors
from cstp_grpc.platform.storage.locks import DataDirLock
from cstp_grpc.platform.storage.migration import current_revision, newest_revision
from cstp_grpc.server.app import build_modules, open_shared_parts, read_inputs, utc_now
from cstp_grpc.server.call_handlers import CallHandlers, CallPolicy, PathDetails, serialize_message
from cstp_grpc.server.deployment import LOCAL_PROCESS
from cstp_grpc.server.execution import EventLoopThread
from cstp_grpc.server.interceptors.admission import InboundCall, OpenStreams, refuse_expired
from cstp_grpc.server.local.local_call import LocalCallContext, LocalCallFailed, LocalStream, timeout_error
from cstp_grpc.server.local.local_settings import reduce_to_local, tenant_of_agent
from cstp_grpc.server.server_module import Module, SharedParts
from cstp_grpc.server.status.server_status import ServerStatusReader

T = TypeVar("T")

LOCK_WAIT_SECONDS: Final = 0.5
"""How long to wait for a process that has the folder for itself. Chosen: a stopping server needs less, and while a
server runs, the wait only delays the error."""


class LocalIdentity:
    """Admits every call as one agent with every permission: access to the folder already allows changing its files."""

    def __init__(self, agent: str, settings: Settings) -> None:
        self._settings = settings
        self.change(agent)

    def change(self, agent: str) -> None:
        """Admit the following calls as another agent."""
        self._caller = Caller(agent, agent, frozenset(Permission), tenant=tenant_of_agent(self._settings, agent))

    def __call__(self, call: InboundCall) -> None:
        """Set the current caller for the rest of the call's task."""
        caller = self._caller
        call.agent = caller.agent
        current_caller.set(replace(caller, request_id=call.request_id))


class ForeignCommitCheck:
    """Checks before each call whether the journal has changed, and refreshes the data in memory.

    It replaces a thread that polls. For one event loop. A process of a newer version may have migrated the journal
    meanwhile, after which this process cannot use it.
    """

    def __init__(self, database: Database, version: DatabaseVersion, listeners: Sequence[Callable[[], object]]) -> None:
        self._database = database
        self._version = version
        self._listeners = listeners
        self._seen = version.read()
        self._migration = newest_revision()

    def __call__(self, call: InboundCall) -> None:  # noqa: ARG002
        """Call the listeners if anything was committed since the last call. Raises QueryFailed."""
        with translate_read_errors():
            if self._database.files is not None:
                self._database.files.check()
            version = self._version.read()
            if version != self._seen:
                if current_revision(self._database) != self._migration:
                    raise QueryFailed("a newer version of this program has migrated the journal; start this one again")
                for listener in self._listeners:
                    listener()
                # After them: if one fails, the next call finds the same changes.
                self._seen = version


class LocalAgent:
    """Serves the contract on a data folder within this process, from any thread, until `close`.

    Calls run on an event loop in a thread of its own, so that those of several threads, and streams, do not wait for
    each other, whatever loops the callers have.
    """

    def __init__(self, settings: Settings, agent: str, clock: Callable[[], datetime] = utc_now) -> None:
        """Open the folder as an agent.

        Raises AlreadyRunning if a server has the folder, ConfigError, RulebookError, UnsuitableDatabase and
        QueryFailed.
        """
        forbid_telemetry()
        # Held to submit work to the event loop, which accepts none once it is closed.
        self._lock = threading.Lock()
        self._closed = False
        self._max_bytes = settings.grpc.max_message_bytes
        with ExitStack() as opened:
            self._identity = LocalIdentity(agent, settings)
            shared, modules, policy = open_modules(opened, settings, self._identity, clock)
            servicers = [servicer for module in modules for servicer in module.servicers]
            self._handlers = CallHandlers(servicers, policy, shared.pools, OpenStreams())
            # Before the database is closed, which running work uses.
            opened.callback(shared.pools.close)
            self._loop = EventLoopThread("local-calls", asyncio.new_event_loop())
            self._loop.start()
            opened.callback(self._loop.stop)
            for begin_stop in (begin_stop for module in modules for begin_stop in module.begin_stop):
                opened.callback(begin_stop)
            self._opened = opened.pop_all()

    def act_as(self, agent: str) -> None:
        """Make the following calls as another agent."""
        self._identity.change(agent)

    def start_call(self, method: RpcMethod, requests: Iterable[Message], timeout: float) -> Future[Message]:
        """Start a call with one response within `timeout` seconds, and return its future.

        It raises CstpError; cancelling it cancels the call, as `close` does. Raises Unavailable after `close`.
        """
        return self._submit(lambda: self._answer(method, requests, timeout))

    def start_stream(self, method: RpcMethod, request: Message, timeout: float | None) -> Future[LocalStream]:
        """Start a call with a stream of responses for `timeout` seconds at most, and return its future."""
        return self._submit(lambda: self._open_stream(method, request, timeout))

    def read_stream(self, stream: LocalStream) -> Future[bytes | None]:
        return self._submit(stream.next_response)

    def cancel_stream(self, stream: LocalStream) -> None:
        with self._lock:
            # Closing has ended it already.
            if not self._closed:
                self._loop.call(stream.cancel)

    def close(self) -> None:
        """End the calls in progress, and close everything."""
        with self._lock:
            self._closed = True
        self._opened.close()

    def _submit(self, start: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._closed:
                raise client_closed_error()
            return self._loop.submit(start())

    async def _answer(self, method: RpcMethod, requests: Iterable[Message], timeout: float) -> Message:
        handler = self._find_handler(method)
        context = LocalCallContext(map(serialize_message, requests), timeout, self._max_bytes)
        try:
            async with asyncio.timeout(timeout):
                data = await handler.stream_unary(None, context)
        except TimeoutError:
            raise timeout_error(method.name, timeout) from None
        except LocalCallFailed as failure:
            raise failure.to_error() from failure
        finally:
            context.finish()
        response: Message = method.response.FromString(data)
        return response

    async def _open_stream(self, method: RpcMethod, request: Message, timeout: float | None) -> LocalStream:
        handler = self._find_handler(method)
        context = LocalCallContext(iter([serialize_message(request)]), timeout, self._max_bytes)

        async def run() -> None:
            try:
                async with asyncio.timeout(timeout):
                    await handler.stream_stream(None, context)
            except TimeoutError:
                raise timeout_error(method.name, timeout) from None

        stream = LocalStream(context, asyncio.get_running_loop().create_task(run()))
        await stream.wait_until_admitted()
        return stream

    def _find_handler(self, method: RpcMethod) -> Any:
        """Return the handler of a method. Raises MethodNotFound."""
        handler = self._handlers.service(PathDetails(method.path))
        if handler is None:
            raise MethodNotFound(f"{method.name} needs a server: without one it is not served")
        return handler


def open_modules(
    opened: ExitStack, settings: Settings, identity: LocalIdentity, clock: Callable[[], datetime]
) -> tuple[SharedParts, Sequence[Module], CallPolicy]:
    """Open the folder and build the modules on it, and the policy of calls by `identity`; `opened` closes them.

    Raises as LocalAgent does.
    """
    local = reduce_to_local(settings)
    inputs = read_inputs(opened, local, clock, LOCAL_PROCESS)
    opened.enter_context(DataDirLock(local.data_dir, shared=True, wait_seconds=LOCK_WAIT_SECONDS))
    shared = open_shared_parts(opened, local, clock, LOCAL_PROCESS, inputs.credentials.live_tokens)
    version = DatabaseVersion(shared.database)
    opened.callback(version.close)
    foreign_commits: list[Callable[[], object]] = []
    # Before the modules read anything, so that the first call notices commits made meanwhile.
    check = ForeignCommitCheck(shared.database, version, foreign_commits)
    modules = build_modules(shared, inputs, is_public, ServerStatusReader(shared, inputs.rules.in_force))
    foreign_commits += [listener for module in modules for listener in module.on_foreign_commit]
    for part in (part for module in modules for part in module.background):
        # None is started, since the process may end after one call. Stopping stores their data, such as the counts of
        # refused calls.
        opened.callback(part.stop)
    return shared, modules, replace(inputs.policy, admission=[refuse_expired, identity, check])
