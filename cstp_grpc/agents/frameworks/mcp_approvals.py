"""Asking the user of an MCP host whether a tool may be called.

Hosts that began with a handshake receive a request from the proxy during the call. Hosts of 2026-07-28 get a result
that asks, and repeat the call with the answer.
"""

from __future__ import annotations

import json
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio
import mcp_types
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCRequest, JSONRPCResponse

from cstp_grpc.common.unicode_text import to_single_line

QUESTION_KEY: Final = "cstp-approval"
"""The name of the question in a result that asks, and the prefix of the ids of the proxy's own requests."""
APPROVE_FIELD: Final = "approve"
ANSWER_SECONDS: Final = 600.0
"""How long a person has to answer."""
MAX_ASKED: Final = 64
"""Maximum number of questions that wait for their calls; the oldest is dropped first, and asked again if needed."""
MAX_SHOWN_CHARACTERS: Final = 2000
"""Maximum length of the arguments in a form. Chosen: short enough that a person reads them."""
RETRY_MEMBERS: Final = ("requestState", "inputResponses")
"""The extra params of a call that is repeated with the answers that its result asked for."""
FORM: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {APPROVE_FIELD: {"type": "boolean", "title": "Approve", "description": "Whether the tool is called"}},
    "required": [APPROVE_FIELD],
}


class PersonAsker:
    """Asks for approvals, and separates the answers to its own requests from those to the server's."""

    def __init__(self, to_host: Callable[[JSONRPCMessage], Awaitable[None]]) -> None:
        self._to_host = to_host
        self._shows_forms = False
        self._host_is_gone = False
        self._waiting: dict[str, WaitingAnswer] = {}
        self._asked: OrderedDict[str, JSONRPCRequest] = OrderedDict()

    def note_handshake(self, message: JSONRPCMessage) -> None:
        """Note whether the host can ask a person, if the message is its handshake."""
        if isinstance(message, JSONRPCRequest) and message.method == "initialize":
            self._shows_forms = offers_forms((message.params or {}).get("capabilities"))

    async def ask(self, request: JSONRPCRequest, question: str) -> bool | dict[str, Any]:
        """Return whether the person approves a call, or the result by which the host asks; False if it cannot."""
        # Hosts show only the form, and models make several calls at once: the form has to name its call.
        text = f"{describe_call(request)}\n\n{question}"
        if is_sessionless(request):
            return self._asking_result(request, text) if offers_forms(stated_capabilities(request)) else False
        # A call may need its approval only after the host has sent its last message.
        if not self._shows_forms or self._host_is_gone:
            return False
        waiting = WaitingAnswer()
        own_id = f"{QUESTION_KEY}-{secrets.token_hex(8)}"
        self._waiting[own_id] = waiting
        try:
            await self._to_host(
                JSONRPCRequest(jsonrpc="2.0", id=own_id, method="elicitation/create", params=form_params(text))
            )
            with anyio.move_on_after(ANSWER_SECONDS):
                await waiting.arrived.wait()
        finally:
            del self._waiting[own_id]
        return is_approval(waiting.result)

    def take_answer(self, answer: JSONRPCResponse | JSONRPCError) -> bool:
        """Return whether the host answers a request of this proxy, and keep the answer if so."""
        # Other answers with an id of the proxy's come too late; the server has sent no request with such an id.
        if not isinstance(answer.id, str) or not answer.id.startswith(QUESTION_KEY):
            return False
        if waiting := self._waiting.get(answer.id):
            waiting.result = answer.result if isinstance(answer, JSONRPCResponse) else None
            waiting.arrived.set()
        return True

    def answer_nobody(self) -> None:
        """Treat open questions as unanswered, since the host is gone, and ask no more questions."""
        self._host_is_gone = True
        for waiting in self._waiting.values():
            waiting.arrived.set()

    def take_retry(self, request: JSONRPCRequest) -> tuple[JSONRPCRequest, bool | None]:
        """Return a call without the answer to this proxy's question, and whether the person approves it.

        None means that nobody was asked.
        """
        params = request.params or {}
        state = params.get("requestState")
        asked = self._asked.pop(state, None) if isinstance(state, str) else None
        if asked is None:
            return request, None
        responses = params.get("inputResponses")
        answer = responses.get(QUESTION_KEY) if isinstance(responses, dict) else None
        rest = {name: value for name, value in params.items() if name not in RETRY_MEMBERS}
        # The call may itself have been a retry that the server asked for.
        own = {name: value for name, value in (asked.params or {}).items() if name in RETRY_MEMBERS}
        # For this call alone: the host may have changed the call.
        approved = describe_exactly(asked) == describe_exactly(request) and is_approval(answer)
        return request.model_copy(update={"params": {**rest, **own}}), approved

    def _asking_result(self, request: JSONRPCRequest, text: str) -> dict[str, Any]:
        state = secrets.token_urlsafe(16)
        self._asked[state] = request
        if len(self._asked) > MAX_ASKED:
            self._asked.popitem(last=False)
        question = {"method": "elicitation/create", "params": form_params(text)}
        return {"resultType": "input_required", "inputRequests": {QUESTION_KEY: question}, "requestState": state}


class WaitingAnswer:
    """The answer to a request of the proxy's own, once it has arrived."""

    def __init__(self) -> None:
        self.arrived = anyio.Event()
        self.result: Mapping[str, Any] | None = None


def form_params(text: str) -> dict[str, Any]:
    return {"mode": "form", "message": text, "requestedSchema": dict(FORM)}


def is_approval(result: Any) -> bool:
    """Return whether a person's answer approves; only a clear yes does."""
    if not isinstance(result, Mapping) or result.get("action") != "accept":
        return False
    content = result.get("content")
    return isinstance(content, Mapping) and content.get(APPROVE_FIELD) is True


def offers_forms(capabilities: Any) -> bool:
    """Return whether a host with these capabilities shows forms to a person."""
    offered = capabilities.get("elicitation") if isinstance(capabilities, dict) else None
    # Without a mode the capability means forms (client/elicitation, "Capabilities").
    return isinstance(offered, dict) and ("form" in offered or "url" not in offered)


def stated_meta(request: JSONRPCRequest) -> Mapping[str, Any]:
    """Return the metadata of a request, or an empty mapping."""
    meta = (request.params or {}).get("_meta")
    return meta if isinstance(meta, dict) else {}


def is_sessionless(request: JSONRPCRequest) -> bool:
    """Return whether a request is of the revision 2026-07-28 or later, in which each request states its version."""
    return mcp_types.PROTOCOL_VERSION_META_KEY in stated_meta(request)


def stated_capabilities(request: JSONRPCRequest) -> Any:
    return stated_meta(request).get(mcp_types.CLIENT_CAPABILITIES_META_KEY)


def describe_call(request: JSONRPCRequest) -> str:
    """Describe a call for a person on one line; long arguments are cut, and their length is named."""
    params = request.params or {}
    arguments = to_single_line(json.dumps(params.get("arguments") or {}, ensure_ascii=False))
    if len(arguments) > MAX_SHOWN_CHARACTERS:
        arguments = f"{arguments[:MAX_SHOWN_CHARACTERS]}… ({len(arguments)} characters)"
    return f"Call {to_single_line(str(params.get('name')))} with {arguments}"


def describe_exactly(request: JSONRPCRequest) -> str:
    """Return the tool and the arguments of a request as one text, for comparing two calls."""
    params = request.params or {}
    return json.dumps([params.get("name"), params.get("arguments") or {}], sort_keys=True)
