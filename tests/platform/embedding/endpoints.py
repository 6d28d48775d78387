"""A small server with the embeddings API of OpenAI, on loopback."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from cstp_grpc.platform.embedding.embedder import UNRELATED_TEXTS
from cstp_grpc.platform.embedding.lexical_embedder import LexicalEmbedder
from tests.http_servers import HttpHandler, QuietHttpServer, serving_http
from tests.waiting import SECONDS

Reply = tuple[int, Any]
"""A status and what is sent as JSON; bytes are sent as they are."""


def embeddings(texts: Sequence[str]) -> Reply:
    """Return the vectors of texts, the last first, which the API allows; they are twice as long as unit vectors."""
    vectors = LexicalEmbedder().embed(texts) * 2
    listed = [{"index": index, "embedding": vector.tolist()} for index, vector in enumerate(vectors)]
    return 200, {"object": "list", "data": listed[::-1], "model": "any"}


@dataclass
class EmbeddingServer:
    """Answers with `replies`, then with vectors, and only while `may_answer` is set."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    response_headers: dict[str, str] = field(default_factory=dict)
    may_answer: threading.Event = field(default_factory=threading.Event)
    reply: Callable[[Sequence[str]], Reply] = embeddings


@contextmanager
def embedding_server() -> Iterator[EmbeddingServer]:
    """Run a server on a free port."""
    state = EmbeddingServer()
    state.may_answer.set()

    class Handler(HttpHandler):
        def answer_post(self) -> None:
            request = self.received_json()
            if all(text.endswith(UNRELATED_TEXTS) for text in request["input"]):
                # What is asked once before the first text; tests are about the texts that follow.
                status, content = embeddings(request["input"])
                self.answer(status, {}, content)
                return
            state.paths.append(self.path)
            state.headers.append(self.received_headers())
            state.requests.append(request)
            state.may_answer.wait(SECONDS)
            status, content = state.replies.pop(0) if state.replies else state.reply(request["input"])
            self.answer(status, state.response_headers, content)

    with serving_http(Handler, kind=QuietHttpServer) as url:
        state.url = f"{url}/v1"
        try:
            yield state
        finally:
            state.may_answer.set()
