"""An index in a Chroma server."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from cstp_grpc.decisions.index import IndexBroken, IndexUnavailable
from cstp_grpc.decisions.index.chroma_http import COLLECTIONS, ChromaHttp
from cstp_grpc.decisions.store import Vector

NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9]+")

HNSW = {"space": "cosine", "ef_construction": 200, "ef_search": 400}
"""How the graph is built and searched. Among 50 000 vectors, 0.998 of the ten nearest were proposed in 3.7 ms; Chroma's
defaults proposed 0.964 in 3.2 ms."""

QUERY_SECONDS = 2.0
"""How long a query may take; an exact search of a million vectors is faster than that."""

FEED_SECONDS = 60.0
"""How long a batch may take; now and then Chroma writes the whole index to disk."""

MAX_UPSERT = 1000
"""How many vectors Chroma takes in one request; its own limit is about 5000."""


class ChromaIndex:
    """The vectors of one model in a collection of its own; fulfils `ProposalIndex`.

    Chroma keeps, as metadata of the collection, up to which revision it was fed. Safe for many threads as long as one
    at a time feeds it.
    """

    def __init__(self, http: ChromaHttp, name: str, model: str) -> None:
        """Prepare for a collection; `open` makes sure that it is there."""
        self._http = http
        self._name = name
        self._model = model
        self._path = ""
        self._revision = -1

    @classmethod
    def open(cls, url: str, model: str, dimensions: int) -> ChromaIndex:
        """Return the index at a server; an empty one where it has none for the model. Raises IndexUnavailable."""
        http = ChromaHttp(url)
        try:
            index = cls(http, collection_name(model, dimensions), model)
            index._find()
        except BaseException:
            http.close()
            raise
        return index

    @property
    def revision(self) -> int:
        """The revision up to which it was fed; -1 for not at all."""
        return self._revision

    def propose(self, vector: Vector, count: int) -> list[str]:
        """Return the ids of the decisions that seem most similar, the most similar first. Raises IndexUnavailable."""
        body = {"query_embeddings": [vector.tolist()], "n_results": count, "include": []}
        answer = self._call("POST", "/query", body, QUERY_SECONDS)
        ids: list[str] = answer["ids"][0]
        return ids

    def upsert(self, ids: Sequence[str], vectors: Sequence[Vector], revision: int) -> None:
        """Add or replace vectors; everything up to `revision` counts as taken then. Raises IndexUnavailable."""
        for start in range(0, len(ids), MAX_UPSERT):
            chosen = slice(start, start + MAX_UPSERT)
            body = {"ids": list(ids[chosen]), "embeddings": [encoded(vector) for vector in vectors[chosen]]}
            self._call("POST", "/upsert", body, FEED_SECONDS)
        # Only now, for what is fed twice does no harm, and what is not fed at all would never be found.
        self._call("PUT", "", {"new_metadata": self._metadata(revision)}, FEED_SECONDS)
        self._revision = revision

    def refresh(self) -> None:
        """Find out up to which revision another process fed it. Raises IndexUnavailable."""
        found = self._http.call("GET", f"{COLLECTIONS}/{self._name}", None, QUERY_SECONDS)
        if found is None or f"{COLLECTIONS}/{found.get('id')}" != self._path:
            raise IndexUnavailable(f"the collection {self._name} was begun anew")
        self._revision = revision_of(found, self._name)

    def count(self) -> int:
        """Return how many decisions it holds. Raises IndexUnavailable."""
        return int(self._call("GET", "/count", None, QUERY_SECONDS))

    def reset(self) -> None:
        """Remove the collection and begin an empty one. Raises IndexUnavailable."""
        self._http.call("DELETE", f"{COLLECTIONS}/{self._name}", None, FEED_SECONDS)
        self._find()

    def others(self) -> list[str]:
        """Return the names of the server's other collections. Raises IndexUnavailable."""
        found = self._http.call("GET", COLLECTIONS, None, QUERY_SECONDS)
        return [item["name"] for item in found or [] if item["name"] != self._name]

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _find(self) -> None:
        """Find the collection or create it."""
        body = {
            "name": self._name,
            "get_or_create": True,
            "metadata": self._metadata(-1),
            "configuration": {"hnsw": HNSW},
        }
        found = self._http.call("GET", f"{COLLECTIONS}/{self._name}", None, FEED_SECONDS)
        if found is None:
            found = self._http.call("POST", COLLECTIONS, body, FEED_SECONDS)
        self._revision = revision_of(found, self._name)
        self._path = f"{COLLECTIONS}/{found['id']}"

    def _metadata(self, revision: int) -> dict[str, object]:
        return {"model": self._model, "revision": revision}

    def _call(self, method: str, path: str, body: object, timeout: float) -> Any:
        answer = self._http.call(method, self._path + path, body, timeout)
        if answer is None:
            raise IndexBroken(f"the collection {self._name} is gone")
        return answer


def revision_of(found: Any, name: str) -> int:
    """Return the revision up to which a collection was fed. Raises IndexBroken if that is not on record."""
    try:
        return int(found["metadata"]["revision"])
    except (TypeError, KeyError, ValueError) as error:
        raise IndexBroken(f"the collection {name} was not made by this program") from error


def collection_name(model: str, dimensions: int) -> str:
    """Return the name of the collection for a model's vectors, of letters that Chroma allows."""
    return f"cstp-{NOT_IN_A_NAME.sub('-', model).strip('-')}-{dimensions}"


def encoded(vector: Vector) -> str:
    """Return a vector as Chroma reads it fastest: little-endian float32 in Base64."""
    return base64.b64encode(vector.astype(np.dtype("<f4"), copy=False).tobytes()).decode("ascii")
