"""A search engine in a Chroma server, with a collection for each journal and model.

Chroma's own client is not used, for the reasons in docs/adr/0004: its requests have no time limit, so that a server
which hangs would hang every search. A collection has a record for each passage; its document is the terms of the
decision, and its metadata the columns that filters need.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import ssl
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any, Final

import numpy as np
from cachetools import TTLCache

from cstp_grpc.client.http_client import HttpResponse, PooledHttpClient
from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.common.unicode_text import replace_unstorable
from cstp_grpc.contract.enums import Outcome, Visibility
from cstp_grpc.core.decisions.model import DecisionFilter
from cstp_grpc.core.decisions.read_policy import ReadPolicy
from cstp_grpc.core.decisions.search import search_engine
from cstp_grpc.core.decisions.store import IndexRow, Vector

logger = logging.getLogger(__name__)

API = "/api/v2"
COLLECTIONS = "/tenants/default_tenant/databases/default_database/collections"
NOT_FOUND = 404
MAX_LOGGED_CHARACTERS = 500
"""Maximum length of a logged error text. Chosen: enough for a message, not for a page of a gateway."""


class ChromaHttpClient:
    """A client of a Chroma server with persistent connections. Safe for many threads."""

    def __init__(self, url: str) -> None:
        # For plain HTTP a context without authorities: reading those of the system takes 20 to 30 ms.
        is_plain = url.startswith("http://")
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT) if is_plain else ssl.create_default_context()
        self._http = PooledHttpClient(url.rstrip("/") + API, tls)

    def heartbeat(self, timeout: float) -> None:
        """Check that the server responds. Raises EngineFailed."""
        answer = self.call("GET", "/heartbeat", None, timeout)
        if not isinstance(answer, dict) or "nanosecond heartbeat" not in answer:
            raise search_engine.EngineFailed("the server at the URL is not a Chroma server")

    def call(self, method: str, path: str, body: object, timeout: float) -> Any:
        """Send a request and return the JSON of its response; None if the path does not exist.

        `timeout` is in seconds, for each wait. Raises EngineFailed.
        """
        try:
            response = self._send(method, path, body, timeout)
        # Also if the client was closed while a search was running.
        except (OSError, HttpProtocolError) as error:
            logger.debug("%s %s at %s: %r", method, path, self._http.logged_url, error)
            raise search_engine.EngineFailed("the Chroma server does not answer") from error
        status = response.status
        if status == NOT_FOUND:
            return None
        if not 200 <= status < 300:
            logger.warning(
                "%s %s at %s: status %d, %r",
                method,
                path,
                self._http.logged_url,
                status,
                response.body.decode("utf-8", "replace")[:MAX_LOGGED_CHARACTERS],
            )
            raise search_engine.EngineFailed(f"the Chroma server answers with status {status}")
        try:
            return json.loads(response.body)
        except ValueError as error:
            raise search_engine.EngineFailed("the Chroma server answers with something other than JSON") from error

    def _send(self, method: str, path: str, body: object, timeout: float) -> HttpResponse:
        try:
            return self._http.request_json(method, path, body, timeout)
        except ConnectionResetError:
            # The server may have closed the connection since it was last used; all requests can be repeated.
            return self._http.request_json(method, path, body, timeout)

    def close(self) -> None:
        self._http.close()


def check_server(url: str) -> None:
    """Check that a Chroma server answers. Raises EngineFailed."""
    with closing(ChromaHttpClient(url)) as client:
        client.heartbeat(QUERY_SECONDS)


HNSW: Final = {"space": "ip", "ef_construction": 200, "ef_search": 400}
"""How the graph is built and searched. Measured with 50 000 vectors: .998 of the ten nearest were proposed in 3.7 ms;
with Chroma's defaults .964 in 3.2 ms."""

QUERY_SECONDS: Final = 5.0
FEED_SECONDS: Final = 60.0
"""Maximum seconds of a write. Chosen for the slowest case, in which Chroma writes the whole index to disk."""

MAX_UPSERT: Final = 1000
"""Records per request. Chosen: below the limit of Chroma, about 5000, which depends on the SQLite that it is built
with."""

MAX_COUNTED: Final = 1000
"""Decisions with a term that are counted; one that more have is frequent."""
COUNTED_TERMS: Final = 50_000
COUNTED_SECONDS: Final = 600.0
"""How long the number of decisions with a term is kept, since asking for it takes a request for each."""

EXEMPLARY: Final = 20
"""Failures and lessons that are proposed each."""

INVALID_NAME_CHARACTERS: Final = re.compile(r"[^A-Za-z0-9]+")
MAX_NAME: Final = 400

Condition = Mapping[str, Any]


class ChromaEngine:
    """The decisions of one journal in Chroma; fulfils `SearchEngine`.

    The metadata of the collection has the revision. `lock` lets one process at a time feed it.
    """

    def __init__(
        self, url: str, journal: str, model: str, sharing: ReadPolicy, lock: Callable[[], AbstractContextManager[bool]]
    ) -> None:
        self._http = ChromaHttpClient(url)
        self._name = collection_name(journal, model)
        self._sharing = sharing
        self._feeding_lock = lock
        # Guards `_counts`; not held while Chroma is asked.
        self._lock = threading.Lock()
        self._counts: TTLCache[tuple[str, int], int] = TTLCache(COUNTED_TERMS, COUNTED_SECONDS)

    def close(self) -> None:
        self._http.close()

    def propose(self, request: search_engine.ProposalRequest) -> search_engine.Proposals:
        collection = self._complete_collection()
        conditions = [*self._readable(request.caller), *filter_conditions(request.filters)]
        found = collection.nearest(request.vector, conditions, request.count)
        more = len(found) == request.count
        if request.rare:
            found += self._with_words(collection, conditions, request)
        if request.exemplary:
            for exemplary in ({"outcome": Outcome.FAILURE.value}, {"has_lesson": True}):
                found += collection.nearest(request.vector, [*conditions, exemplary], EXEMPLARY)
        return search_engine.Proposals(list(dict.fromkeys(map(decision_of_passage, found))), collection.revision, more)

    def read_statistics(self, hashes: Sequence[int], caller: str) -> search_engine.TermStatistics:
        collection = self._complete_collection()
        counts: dict[int, int] = {}
        for term in hashes:
            with self._lock:
                known = self._counts.get((caller, term))
            if known is None:
                known = len(collection.find(self._readable(caller), [term], MAX_COUNTED))
                with self._lock:
                    self._counts[caller, term] = known
            counts[term] = known
        # A power of two, which says hardly anything about the private decisions of others.
        return search_engine.TermStatistics(max(1 << collection.count().bit_length(), MAX_COUNTED), counts)

    def sample(self, caller: str, count: int) -> Sequence[str]:
        collection = self._complete_collection()
        found = collection.find([*self._readable(caller), {"place": 0}], [], count)
        return list(map(decision_of_passage, found))

    @contextmanager
    def begin_feeding(self) -> Iterator[search_engine.Feeding | None]:
        with self._feeding_lock() as is_ours:
            yield ChromaFeeding(self._open_collection()) if is_ours else None

    def _complete_collection(self) -> ChromaCollection:
        found = self._find_collection(QUERY_SECONDS)
        if found is None or not found.is_complete:
            raise search_engine.EngineIncomplete
        return found

    def _open_collection(self) -> ChromaCollection:
        found = self._find_collection(FEED_SECONDS)
        if found is None:
            body = {
                "name": self._name,
                "get_or_create": True,
                "metadata": {"revision": -1, "complete": False},
                "configuration": {"hnsw": HNSW},
            }
            found = ChromaCollection(self._http, self._http.call("POST", COLLECTIONS, body, FEED_SECONDS))
        return found

    def _find_collection(self, timeout: float) -> ChromaCollection | None:
        found = self._http.call("GET", f"{COLLECTIONS}/{self._name}", None, timeout)
        return None if found is None else ChromaCollection(self._http, found)

    def _with_words(
        self, collection: ChromaCollection, conditions: Sequence[Condition], request: search_engine.ProposalRequest
    ) -> list[str]:
        """Return the first passages of the decisions with most of the words of a request."""
        weights: Counter[str] = Counter()
        for term in request.rare:
            for passage in collection.find([*conditions, {"place": 0}], [term], search_engine.MAX_RAREST_ROWS):
                weights[passage] += request.weights[term]  # type: ignore[assignment]
        return [passage for passage, _ in weights.most_common(request.count)]

    def _readable(self, caller: str) -> list[Condition]:
        shared: list[Condition] = [{"visibility": Visibility.SHARED.value}]
        if self._sharing.is_restricted_peer(caller):
            if self._sharing.categories:
                shared.append({"category": {"$in": sorted(self._sharing.categories)}})
            if self._sharing.tags:
                shared.append(any_of([{"tags": {"$contains": tag}} for tag in sorted(self._sharing.tags)]))
        return [{"$or": [{"agent": caller}, all_of(shared)]}]


class ChromaCollection:
    """A collection as it was when it was read."""

    def __init__(self, http: ChromaHttpClient, found: Any) -> None:
        """Use a collection as Chroma describes it. Raises EngineFailed if another program made it."""
        self._http = http
        try:
            self._path = f"{COLLECTIONS}/{found['id']}"
            self.revision = int(found["metadata"]["revision"])
            self.is_complete = bool(found["metadata"]["complete"])
        except (TypeError, KeyError, ValueError) as error:
            raise search_engine.EngineFailed("the collection was not made by this program") from error

    def count(self) -> int:
        return int(self._call("GET", "/count", None, QUERY_SECONDS))

    def nearest(self, vector: Vector, conditions: Sequence[Condition], count: int) -> list[str]:
        body = {"query_embeddings": [vector.tolist()], "n_results": count, "where": all_of(conditions), "include": []}
        ids: list[str] = self._call("POST", "/query", body, QUERY_SECONDS)["ids"][0]
        return ids

    def find(self, conditions: Sequence[Condition], terms: Sequence[int], limit: int) -> list[str]:
        """Return the passages that meet conditions and are of decisions with some terms."""
        body: dict[str, Any] = {"where": all_of(conditions), "limit": limit, "include": []}
        if terms:
            body["where_document"] = all_of([{"$contains": term_text(term)} for term in terms])
        ids: list[str] = self._call("POST", "/get", body, QUERY_SECONDS)["ids"]
        return ids

    def upsert(self, rows: Sequence[IndexRow]) -> None:
        records = [
            (
                passage_id(row.decision_id, place),
                encode_vector(vector),
                passage_metadata(row, place),
                "".join(map(term_text, row.terms["hash"].tolist())),
            )
            for row in rows
            for place, vector in enumerate(row.passages.vectors)
        ]
        for begin in range(0, len(records), MAX_UPSERT):
            ids, vectors, metadatas, documents = zip(*records[begin : begin + MAX_UPSERT], strict=True)
            body = {"ids": ids, "embeddings": vectors, "metadatas": metadatas, "documents": documents}
            self._call("POST", "/upsert", body, FEED_SECONDS)

    def remove(self, ids: Sequence[str]) -> None:
        """Remove the passages of decisions; unknown ones are ignored."""
        for begin in range(0, len(ids), MAX_UPSERT):
            of_ids = {"where": {"decision_id": {"$in": list(ids[begin : begin + MAX_UPSERT])}}}
            # Asked first, since most are unknown, and deleting those takes thirty times as long.
            if self._call("POST", "/get", {**of_ids, "limit": 1, "include": []}, FEED_SECONDS)["ids"]:
                self._call("POST", "/delete", of_ids, FEED_SECONDS)

    def describe(self, revision: int, *, complete: bool) -> None:
        """Set the revision and whether the collection is complete."""
        metadata = {"revision": revision, "complete": complete}
        self._call("PUT", "", {"new_metadata": metadata}, FEED_SECONDS)
        self.revision, self.is_complete = revision, complete

    def _call(self, method: str, path: str, body: object, timeout: float) -> Any:
        answer = self._http.call(method, self._path + path, body, timeout)
        # Answers to changes have no content.
        if answer is None and path:
            raise search_engine.EngineFailed("the collection is gone")
        return answer


class ChromaFeeding:
    """Changes of a collection; fulfils `Feeding`.

    The revision is written after the records. If the process is killed before, the next one writes them again, which
    changes nothing.
    """

    def __init__(self, collection: ChromaCollection) -> None:
        self._collection = collection

    @property
    def revision(self) -> int:
        return self._collection.revision

    def put(self, rows: Sequence[IndexRow], erased: Sequence[str], revision: int) -> None:
        # Also the passages that a decision no longer has; an empty collection has none.
        if self.revision >= 0 or self._collection.is_complete:
            self._collection.remove([*(row.decision_id for row in rows), *erased])
        self._collection.upsert(rows)
        self._collection.describe(revision, complete=self._collection.is_complete)

    def complete(self) -> None:
        if not self._collection.is_complete:
            self._collection.describe(self.revision, complete=True)


def filter_conditions(filters: DecisionFilter) -> list[Condition]:
    """Return the conditions of a filter on metadata, in which a missing value meets none."""
    # Texts are compared as they would have been stored.
    equal = {"category": filters.category, "project": filters.project, "agent": filters.agent}
    found: list[Condition] = [{key: replace_unstorable(text)} for key, text in equal.items() if text is not None]
    if filters.without_agent is not None:
        found.append({"agent": {"$ne": replace_unstorable(filters.without_agent)}})
    instants = (filters.date_after, filters.date_before)
    least, greatest = (None if instant is None else instant.timestamp() for instant in instants)
    for key, operator, bound in (
        ("confidence", "$gte", filters.min_confidence),
        ("confidence", "$lte", filters.max_confidence),
        ("date", "$gte", least),
        ("date", "$lte", greatest),
    ):
        if bound is not None:
            found.append({key: {operator: bound}})
    for key, words in (("stakes", filters.stakes), ("status", filters.status), ("outcome", filters.outcome)):
        if words:
            found.append({key: {"$in": [str(word) for word in words]}})
    return [*found, *({"tags": {"$contains": replace_unstorable(tag)}} for tag in filters.tags)]


def all_of(conditions: Sequence[Condition]) -> Condition:
    return conditions[0] if len(conditions) == 1 else {"$and": list(conditions)}


def any_of(conditions: Sequence[Condition]) -> Condition:
    return conditions[0] if len(conditions) == 1 else {"$or": list(conditions)}


def passage_metadata(row: IndexRow, place: int) -> dict[str, object]:
    values = {
        "decision_id": row.decision_id,
        "place": place,
        "agent": row.agent,
        "visibility": row.visibility,
        "category": row.category,
        "project": row.project,
        "confidence": row.confidence,
        "date": row.date,
        "stakes": row.stakes,
        "status": row.status,
        "outcome": row.outcome,
        "has_lesson": row.passages.has_lesson,
    }
    found: dict[str, object] = {key: value for key, value in values.items() if value is not None}
    if row.tags:
        # Chroma refuses an empty list.
        found["tags"] = list(row.tags)
    return found


def term_text(term: int) -> str:
    """Return a term in a document; none is a part of another, or of two neighbours."""
    return f"<{term:x}>"


def passage_id(decision_id: str, place: int) -> str:
    return f"{decision_id}#{place}"


def decision_of_passage(passage: str) -> str:
    return passage.rpartition("#")[0]


def collection_name(journal: str, model: str) -> str:
    """Return the name of the collection of a journal and model, in characters that Chroma allows."""
    return f"cstp-{journal}-{INVALID_NAME_CHARACTERS.sub('-', model).strip('-')}"[:MAX_NAME]


def encode_vector(vector: Vector) -> str:
    """Return a vector in the encoding that Chroma reads fastest: little-endian float32 in Base64."""
    return base64.b64encode(vector.astype(np.dtype("<f4"), copy=False).tobytes()).decode("ascii")
