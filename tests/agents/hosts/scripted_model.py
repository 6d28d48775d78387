"""A model on loopback whose answers are a script: it speaks the streaming APIs that coding agents use."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class ToolCall:
    """What the model answers to have a tool called; text arguments are those of a tool without a schema."""

    tool: str
    arguments: Mapping[str, Any] | str
    namespace: str = ""
    """The group of the tool, in APIs that have groups."""


Step = ToolCall | Callable[[str], ToolCall]
"""An answer of the model, or a function that makes one of the result of the call before."""


class ScriptedModel:
    """Answers each conversation with the step whose number is that of the tool results so far, at last with a text."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.requests: dict[int, str] = {}
        """The conversation after each number of tool results, as JSON, if tools can be called in it."""
        self.results: list[str] = []
        """The results of the tools in the latest conversation."""
        self._steps: Sequence[Step] = ()
        self._answers: list[ToolCall] = []
        self._lock = threading.Lock()

    def follow(self, steps: Sequence[Step]) -> None:
        """Begin a script, and forget what was sent before."""
        self._steps, self._answers, self.requests, self.results = steps, [], {}, []

    def answer(self, body: JsonObject, results: list[str]) -> ToolCall | str:
        """Return the answer to a conversation."""
        if not body.get("tools"):
            return "Nothing to add."
        with self._lock:
            number = len(results)
            self.requests[number] = json.dumps(body, ensure_ascii=False)
            self.results = results
            if number >= len(self._steps):
                return "All is done."
            # Each step is taken once, whichever requests the agent repeats.
            if number == len(self._answers):
                step = self._steps[number]
                try:
                    self._answers.append(step if isinstance(step, ToolCall) else step(results[-1]))
                # Agents repeat requests that fail, but end after a text, which they print.
                except Exception as error:  # noqa: BLE001
                    return f"The script failed: {error!r}"
            return self._answers[number]


class ModelServer(ThreadingHTTPServer):
    """Serves a model."""

    model: ScriptedModel


class Handler(BaseHTTPRequestHandler):
    """Answers requests by their paths."""

    protocol_version = "HTTP/1.1"
    server: ModelServer

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Answer a list of models; some agents look at it first."""
        self.send(200, "application/json", json.dumps({"object": "list", "data": [{"id": "scripted"}], "models": []}))

    def do_POST(self) -> None:
        """Answer a conversation."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = self.path.partition("?")[0]
        speak = next((speak for ending, speak in APIS.items() if path.endswith(ending)), None)
        if speak is None:
            self.send(404, "application/json", '{"error": {"message": "unknown path"}}')
            return
        lines: Iterator[str] = (
            (f"event: {event['type']}\n" if "type" in event else "") + f"data: {json.dumps(event)}\n\n"
            for event in speak(self.server.model, body)
        )
        self.send(200, "text/event-stream", "".join(lines))

    def send(self, status: int, kind: str, text: str) -> None:
        """Send a response."""
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def speak_messages(model: ScriptedModel, body: JsonObject) -> Iterator[JsonObject]:
    """Yield the events of Anthropic's Messages API."""
    parts = [
        part for message in body["messages"] if isinstance(message["content"], list) for part in message["content"]
    ]
    results = [text_of(part.get("content")) for part in parts if part["type"] == "tool_result"]
    answer = model.answer(body, results)
    block: JsonObject = {"type": "text", "text": ""}
    delta: JsonObject = {"type": "text_delta", "text": answer}
    if isinstance(answer, ToolCall):
        block = {"type": "tool_use", "id": f"toolu_{len(results)}", "name": answer.tool, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(answer.arguments)}
    reason = "tool_use" if isinstance(answer, ToolCall) else "end_turn"
    usage = {"input_tokens": 1, "output_tokens": 1}
    message = {"id": f"msg_{len(results)}", "type": "message", "role": "assistant", "model": body["model"]}
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "usage": usage}}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    yield {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage}
    yield {"type": "message_stop"}


def speak_responses(model: ScriptedModel, body: JsonObject) -> Iterator[JsonObject]:
    """Yield the events of OpenAI's Responses API."""
    outputs = [item for item in body["input"] if str(item.get("type")).endswith("_call_output")]
    answer = model.answer(body, [text_of(item["output"]) for item in outputs])
    number = len(outputs)
    call: JsonObject
    match answer:
        case ToolCall(tool, str() as text):
            call = {"type": "custom_tool_call", "call_id": f"call_{number}", "name": tool, "input": text}
        case ToolCall(tool, arguments, namespace):
            written = json.dumps(arguments)
            call = {"type": "function_call", "call_id": f"call_{number}", "name": tool, "arguments": written}
            call |= {"namespace": namespace} if namespace else {}
        case text:
            said = [{"type": "output_text", "text": text, "annotations": []}]
            call = {"type": "message", "role": "assistant", "content": said}
    item = {"id": f"item_{number}", "status": "completed", **call}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    response: JsonObject = {"id": f"resp_{number}", "object": "response", "model": body["model"], "output": []}
    yield {"type": "response.created", "response": {**response, "status": "in_progress"}}
    yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    yield {"type": "response.completed", "response": done}


def speak_chat(model: ScriptedModel, body: JsonObject) -> Iterator[JsonObject]:
    """Yield the chunks of OpenAI's Chat Completions API."""
    results = [text_of(message["content"]) for message in body["messages"] if message["role"] == "tool"]
    answer = model.answer(body, results)
    delta: JsonObject = {"role": "assistant", "content": answer}
    if isinstance(answer, ToolCall):
        function = {"name": answer.tool, "arguments": json.dumps(answer.arguments)}
        call = {"index": 0, "id": f"call_{len(results)}", "type": "function", "function": function}
        delta = {"role": "assistant", "content": None, "tool_calls": [call]}
    chunk = {"id": f"chat_{len(results)}", "object": "chat.completion.chunk", "created": 0, "model": body["model"]}
    reason = "tool_calls" if isinstance(answer, ToolCall) else "stop"
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}], "usage": usage}


def speak_gemini(model: ScriptedModel, body: JsonObject) -> Iterator[JsonObject]:
    """Yield the chunk of Gemini's streamGenerateContent."""
    parts = [part for content in body["contents"] for part in content["parts"]]
    results = [text_of(part["functionResponse"]["response"]) for part in parts if "functionResponse" in part]
    answer = model.answer(body, results)
    part: JsonObject = {"text": answer}
    if isinstance(answer, ToolCall):
        part = {"functionCall": {"name": answer.tool, "args": answer.arguments}}
    yield {
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
    }


def text_of(content: Any) -> str:
    """Return the texts in the result of a tool."""
    match content:
        case str():
            return content
        case list():
            return "\n".join(map(text_of, content))
        case dict():
            return text_of(list(content.values()))
        case _:
            return ""


APIS: Mapping[str, Callable[[ScriptedModel, JsonObject], Iterable[JsonObject]]] = {
    "/messages": speak_messages,
    "/responses": speak_responses,
    "/chat/completions": speak_chat,
    ":streamGenerateContent": speak_gemini,
}
"""The APIs by the ends of their paths."""


@contextmanager
def scripted_model() -> Iterator[ScriptedModel]:
    """Serve a model on a free port for the length of a block."""
    with ModelServer(("127.0.0.1", 0), Handler) as server:
        server.model = ScriptedModel(f"http://127.0.0.1:{server.server_port}")
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield server.model
        finally:
            server.shutdown()
            serving.join()
