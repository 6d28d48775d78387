"""A small server with the embeddings API of OpenAI, on loopback."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cstp_grpc.embedding.lexical_embedder import LexicalEmbedder
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

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            state.paths.append(self.path)
            state.headers.append({name.lower(): value for name, value in self.headers.items()})
            state.requests.append(request)
            state.may_answer.wait(SECONDS)
            status, content = state.replies.pop(0) if state.replies else state.reply(request["input"])
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"content-length": str(len(body)), **state.response_headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    class QuietServer(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of clients that did not wait."""

    server = QuietServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield state
    finally:
        state.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
