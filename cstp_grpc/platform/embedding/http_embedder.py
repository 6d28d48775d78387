"""An embedder that asks an HTTP endpoint with the embeddings API of OpenAI, which many servers speak.

The API: https://platform.openai.com/docs/api-reference/embeddings.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import partial
from urllib.parse import urlsplit

import numpy as np

from cstp_grpc.client.http_client import HttpClient, HttpResponse
from cstp_grpc.client.http_exchange import HttpProtocolError
from cstp_grpc.client.retry import Retrier
from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.errors import CstpError, QueryFailed, Unavailable
from cstp_grpc.platform.embedding.embedder import UncachedEmbedder, Vectors

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 8192
"""Characters of a text that are sent. Chosen: the models of OpenAI refuse more than 8191 tokens, and hardly any
token has less than a character.
"""
NUMBER_BYTES = 32
"""Bytes of a number in a response, at most: the 17 digits of a double, its exponent, and spaces around it."""
ENVELOPE_BYTES = 64 * 1024
"""Bytes of a response without its numbers."""
TRANSIENT_STATUSES = frozenset({408, 425, 429})
"""Statuses below 500 after which a retry may succeed, as for webhooks."""


@dataclass(frozen=True, slots=True)
class EmbeddingEndpoint:
    """The address of an embeddings API, such as `https://api.openai.com/v1`, and the parameters of requests.

    `seconds` is how long a request may take with its retries, `batch` how many texts a request has.
    """

    url: str
    model: str
    dimensions: int
    seconds: float
    batch: int
    api_key: str | None = field(default=None, repr=False)

    @property
    def max_response_bytes(self) -> int:
        return self.batch * self.dimensions * NUMBER_BYTES + ENVELOPE_BYTES


class HttpEmbedder(UncachedEmbedder):
    """Embeds texts by an endpoint. Safe for many threads."""

    def __init__(self, endpoint: EmbeddingEndpoint, http: HttpClient, retrier: Retrier) -> None:
        # Without the address, so that a model may move.
        self.model, self.dimensions = f"openai:{endpoint.model}:{endpoint.dimensions}", endpoint.dimensions
        self._endpoint = endpoint
        self._http = http
        self._retrier = retrier
        self._url = urlsplit(f"{endpoint.url.rstrip('/')}/embeddings")
        key = {} if endpoint.api_key is None else {"authorization": f"Bearer {endpoint.api_key}"}
        self._headers = {"content-type": "application/json", "accept": "application/json", **key}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a unit vector for each text. Raises QueryFailed."""
        vectors = np.empty((len(texts), self.dimensions), np.float32)
        for start in range(0, len(texts), self._endpoint.batch):
            batch = [text[:MAX_CHARACTERS] for text in texts[start : start + self._endpoint.batch]]
            request = partial(self._ask, batch)
            try:
                answer = self._retrier.run(request, self._endpoint.seconds, repeatable=True)
                vectors[start : start + len(batch)] = answer
            except CstpError as error:
                raise QueryFailed(f"The text could not be turned into a vector: {error.message}") from error
        return vectors

    def _ask(self, texts: Sequence[str], seconds: float) -> Vectors:
        """Return the vectors of one request. Raises Unavailable if it may be repeated, and QueryFailed."""
        # Lone surrogates have no UTF-8; JSON escapes them, and endpoints refuse or replace them.
        body = json.dumps({"model": self._endpoint.model, "input": list(texts)}).encode("ascii")
        try:
            answer = self._http.fetch("POST", self._url, self._headers, body, seconds)
        except TimeoutError as error:
            raise Unavailable("the endpoint does not answer in time.") from error
        except OSError as error:
            logger.warning("%s does not answer: %r", self._url.hostname, error)
            raise Unavailable("the endpoint cannot be reached.") from error
        except HttpProtocolError as error:
            logger.warning("%s: %r", self._url.hostname, error)
            raise QueryFailed("the endpoint's answer is not HTTP or is too large.") from error
        if answer.status != 200:
            raise self._refusal(answer)
        return parse_vectors(answer.body, len(texts), self.dimensions)

    def _refusal(self, answer: HttpResponse) -> CstpError:
        # Without the body, which may quote the key or the text that was sent.
        logger.warning("%s: HTTP %d", self._url.hostname, answer.status)
        message = f"the endpoint answers with HTTP {answer.status}."
        if answer.status >= 500 or answer.status in TRANSIENT_STATUSES:
            after = answer.headers.get("retry-after", "")
            return Unavailable(message, retry_after=float(after) if after.isdecimal() else None)
        return QueryFailed(message)


def parse_vectors(body: bytes, count: int, dimensions: int) -> Vectors:
    """Return the unit vectors in a response, in the order of their `index`. Raises QueryFailed if it does not fit."""
    try:
        items = json.loads(body)["data"]
        # The API numbers the vectors, since a server may answer in another order than it was asked.
        by_index = {item["index"]: item["embedding"] for item in items}
        rows = [by_index[index] for index in range(count)]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise QueryFailed("the endpoint's answer is not a list of embeddings.") from error
    if len(items) != count:
        raise QueryFailed(f"the endpoint answers with {len(items)} embeddings for {count} texts.")
    lengths = {len(row) if isinstance(row, list) else 0 for row in rows}
    if lengths - {dimensions}:
        raise QueryFailed(f"the endpoint's vectors have {max(lengths)} dimensions instead of {dimensions}.")
    try:
        vectors = np.array(rows, np.float64).reshape(count, dimensions)
    except (ValueError, TypeError, OverflowError) as error:
        raise QueryFailed("the endpoint's vectors are not numbers.") from error
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    if not np.isfinite(norms).all() or not (norms > 0).all():
        raise QueryFailed("the endpoint's vectors have no direction.")
    unit: Vectors = (vectors / norms).astype(np.float32)
    return unit
