"""Wiring of the proofs of the audit trail, for servers and for commands that read the database themselves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.core.audit.checkpoints import KEY_FILE
from cstp_grpc.core.audit.entry_hashing import format_instant
from cstp_grpc.core.audit.messages import ProofMessages
from cstp_grpc.core.audit.proofs import AuditProofs
from cstp_grpc.core.audit.verification import VerificationReport
from cstp_grpc.core.decisions.read_policy import SHARE_WITH_ALL
from cstp_grpc.core.decisions.sql_history import SqlHistoryStore
from cstp_grpc.core.decisions.sql_store import SqlDecisionStore
from cstp_grpc.core.intents.model import IntentFilter
from cstp_grpc.core.intents.sql_store import SqlIntentStore
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.storage.database import Database
from cstp_grpc.platform.storage.pagination import PageRequest

if TYPE_CHECKING:
    from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile, TrustedKeys

MAX_REVIEWS = 1000


def build_audit_proofs(
    settings: Settings,
    database: Database,
    sign: Callable[[], object] | None = None,
    on_findings: Callable[[VerificationReport], object] = lambda _: None,
) -> ProofMessages:
    """Build the proofs of the trail in a database; `sign` makes a checkpoint, None where none can be made."""
    proofs = AuditProofs(
        database,
        partial(read_subjects, database),
        lambda: SqlDecisionStore(database, SHARE_WITH_ALL).identity(),
        sign,
        on_findings,
    )
    return ProofMessages(proofs, partial(read_trusted_keys, settings), partial(read_public_key, settings))


def signing_key_loader(settings: Settings) -> Callable[[], SigningKeyFile]:
    """Return a function that loads the configured signing key, or else the one in the data folder, creating it."""

    def load_key() -> SigningKeyFile:
        # Imported here: a server without entries, and every command, does without.
        from cstp_grpc.core.audit.checkpoint_keys import SigningKeyFile

        configured = settings.audit.signing_key_file
        if configured is not None:
            return SigningKeyFile.load(configured)
        return SigningKeyFile.load_or_create(settings.data_dir / KEY_FILE)

    return load_key


def read_public_key(settings: Settings) -> tuple[str, str]:
    """Return the id of the key that signs checkpoints, and its public half in PEM; create it if it is missing."""
    from cstp_grpc.core.audit.checkpoint_keys import encode_public_key

    key = signing_key_loader(settings)()
    return key.key_id, encode_public_key(key.public_key)


def read_trusted_keys(settings: Settings, texts: Sequence[str]) -> TrustedKeys:
    """Return the keys in PEM texts, or without any the one that signs here. Raises InvalidArgument and ConfigError."""
    from cstp_grpc.core.audit.checkpoint_keys import TrustedKeys, parse_public_keys

    if not texts:
        # A trail without checkpoints needs no key, and a server makes its own with the first.
        has_own = settings.audit.signing_key_file is not None or (settings.data_dir / KEY_FILE).exists()
        return TrustedKeys.of([signing_key_loader(settings)().public_key] if has_own else [])
    try:
        return TrustedKeys.of([key for text in texts for key in parse_public_keys(text.encode())])
    except ValueError as error:
        raise InvalidArgument.field("public_keys", str(error)) from error


def read_subjects(database: Database, decision_ids: Sequence[str], correlation_ids: Sequence[str]) -> Mapping[str, Any]:
    """Return the outcomes of decisions and intents for evidence. Raises QueryFailed."""
    return {
        "decisions": list(map(to_plain_json, read_decisions(database, decision_ids))),
        "intents": list(map(to_plain_json, read_intents(database, correlation_ids))),
    }


def read_decisions(database: Database, ids: Sequence[str]) -> list[Any]:
    """Return the state, outcome and reviews of decisions, without deleted ones."""
    store, history = SqlDecisionStore(database, SHARE_WITH_ALL), SqlHistoryStore(database)
    found = [
        (decision, history.read_history(decision.id, MAX_REVIEWS, 0)) for each in ids if (decision := store.get(each))
    ]
    return [
        {
            "id": decision.id,
            "agent": decision.agent,
            "title": decision.title,
            "status": decision.status,
            "outcome": decision.outcome,
            "reviews": [asdict(review) for review in past.reviews],
        }
        for decision, past in found
    ]


def read_intents(database: Database, correlation_ids: Sequence[str]) -> list[Any]:
    """Return how announced intents ended, by the correlation ids of entries."""
    store = SqlIntentStore(database)
    return [
        {
            "agent": intent.agent,
            "correlation_id": intent.correlation_id,
            "revision": intent.revision,
            "received_at": intent.received_at,
            "closing": None if intent.closing is None else asdict(intent.closing),
        }
        for correlation_id in correlation_ids
        for intent in store.page(IntentFilter(correlation_id=correlation_id), PageRequest(1000)).items
    ]


def to_plain_json(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: to_plain_json(member) for name, member in value.items() if member is not None}
    if isinstance(value, list | tuple):
        return [to_plain_json(element) for element in value]
    return format_instant(value) if isinstance(value, datetime) else value
