"""The parts that all modules of the server share, and the contribution of each module."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.common.spans import NO_SPANS, Spans

if TYPE_CHECKING:
    from datetime import datetime

    from cstp_grpc.common.measures import Measure
    from cstp_grpc.core.audit.model import AuditSink
    from cstp_grpc.core.decisions.read_policy import ReadPolicy
    from cstp_grpc.core.decisions.search.decision_search import SearchObserver
    from cstp_grpc.core.guardrails.checker import VerdictObserver
    from cstp_grpc.core.tokens.live_tokens import LiveTokens
    from cstp_grpc.modules.federation.peer import PeerObserver
    from cstp_grpc.platform.config import Settings
    from cstp_grpc.platform.embedding.embedder import Embedder
    from cstp_grpc.platform.storage.database import Database
    from cstp_grpc.platform.storage.writer import CommitObserver, GroupCommitWriter
    from cstp_grpc.server.call_handlers import ServicerRegistration
    from cstp_grpc.server.deployment import Deployment
    from cstp_grpc.server.execution import CallPools


class BackgroundPart(Protocol):
    """Works in threads of its own between `start` and `stop`."""

    def start(self) -> None:
        """Start the threads."""

    def stop(self) -> None:
        """Stop the threads and wait for work in progress."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The contribution of a module to the server, which starts and stops it; building a module starts nothing."""

    servicers: Sequence[ServicerRegistration] = ()
    background: Sequence[BackgroundPart] = ()
    """Started in this order before the server listens, and stopped in reverse after its last call."""
    late_background: Sequence[BackgroundPart] = ()
    """The same, but started after the server listens, because no call waits for it."""
    begin_stop: Sequence[Callable[[], None]] = ()
    """Called when the server begins to stop, before it waits for calls in progress. They end work that these calls do
    not need, and waits without an end, such as streams.
    """
    on_foreign_commit: Sequence[Callable[[], object]] = ()
    """Called in a thread after another process has written to the database."""
    on_reload: Sequence[Callable[[], object]] = ()
    """Called when the operator asks to reload files that may change while the server runs; they return at once."""
    health: Mapping[str, Callable[[], bool]] = field(default_factory=dict)
    """Additional names in the health service; each returns whether its component is healthy now."""
    measures: Sequence[Measure] = ()
    """Figures of its state, for metrics."""
    require_new_task: Callable[[str, str], Awaitable[None]] | None = None
    """As in `CallPolicy`; of the module of tasks only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkObservers:
    """The observers of the work of modules; None without an observer."""

    commits: CommitObserver | None = None
    verdicts: VerdictObserver | None = None
    searches: SearchObserver | None = None
    peers: PeerObserver | None = None
    spans: Spans = NO_SPANS


UNOBSERVED = WorkObservers()


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts that all modules are built from."""

    settings: Settings
    deployment: Deployment
    clock: Callable[[], datetime]
    embedder: Embedder
    """The embedder of stored texts, and of all that are compared with each other."""
    query_embedder: Embedder
    """The embedder of queries for decisions."""
    database: Database
    writer: GroupCommitWriter
    pools: CallPools
    live_tokens: LiveTokens
    """The tokens of agents that are created while servers run."""
    read_policy: ReadPolicy
    """Read permissions for decisions and intents."""
    sink: AuditSink
    """The sink for audit entries of modules."""
    observers: WorkObservers = UNOBSERVED

    @property
    def database_is_shared(self) -> bool:
        return self.deployment.shares_database(self.database)
