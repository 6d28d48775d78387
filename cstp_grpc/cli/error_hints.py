"""Hints on the next step after an error."""

from __future__ import annotations

import shlex
from typing import Any

from cstp_grpc.cli.server_choice import Endpoint
from cstp_grpc.client.http_exchange import SPEAKS_GRPC
from cstp_grpc.contract import errors
from cstp_grpc.contract.errors import REQUEST_ID, CstpError, ServerUnreachable
from cstp_grpc.contract.rpc_errors import SPEAKS_HTTP
from cstp_grpc.modules.liaison.model import GUIDE

OTHER_PROTOCOLS = {"grpc": "http", "grpcs": "https", "http": "grpc", "https": "grpcs"}
"""The schemes of bridges and of gRPC servers, by those of the other."""
TLS_SCHEMES = {"grpc": "grpcs", "http": "https"}
"""The schemes of servers that speak TLS, by those of servers that do not."""
NAME_MISMATCH_SIGNS = ("hostname verification", "hostname mismatch", "ip address mismatch")
UNTRUSTED_SIGNS = ("certificate_verify_failed",)
NO_TLS_SIGNS = ("wrong_version_number",)
CONNECTION_LOST_SIGNS = ("socket closed", "connection reset", "without response")
"""Signs in messages of gRPC and Python that a connection failed: by the certificate's name, by its authority, because
the server speaks no TLS, because it broke off a plain connection."""

UNNAMED_ACTOR = frozenset({"action.agent", "action.permissions"})
"""The fields that only a check by rules alone has: a server knows them by the token."""


def hint_for_error(error: CstpError, endpoint: Endpoint | None) -> str | None:
    """Return a hint for a failed call, or None if its message suffices."""
    match error:
        case ServerUnreachable():
            return protocol_hint(error, endpoint) or tls_hint(error, endpoint) or connection_hint(endpoint)
        case errors.AuthenticationRequired():
            return token_hint(endpoint)
        case errors.PermissionDenied() if needed := error.metadata.get("permission"):
            return (
                f"Add `{needed}` to the permissions of this token where it is from: auth.tokens of the server's "
                "configuration, `cstp token create` for another one, or its issuer."
            )
        case errors.RateLimited() if error.retry_after is not None:
            return f"Try again in {error.retry_after:g} s, or raise rate_limits in the server's configuration."
        case errors.DeadlineExceeded():
            return "Raise --timeout SECONDS, and check whether the server is overloaded."
        case errors.InvalidArgument() if any(each.field.startswith("agents[") for each in error.violations):
            return "--ask accepts the names in federation.peers of the server's configuration."
        case errors.InvalidArgument() if {each.field for each in error.violations} & UNNAMED_ACTOR:
            return "Set the acting agent with --as AGENT, and its permissions with --permission NAME."
        case errors.LiaisonAgentUnavailable() | errors.SessionNotFound() | errors.SessionWithAnotherAgent():
            return session_hint(error)
        case errors.SessionUpdateFailed():
            return "Something else changed it at the same time; run the command again."
        case errors.PermissionDenied() if not error.blocks and (pillar := error.metadata.get("target_pillar")):
            return f"Name the agent of this token in liaison.pillars.{pillar}.agent of the server's configuration."
        case errors.Conflict() if "chat_session_id" in error.metadata:
            return session_hint(error)
        case errors.Conflict() if endpoint is not None and "agent" not in error.metadata:
            return "Use another id, or repeat exactly what was sent with this one."
        case errors.InternalError() | errors.QueryFailed() | errors.Unavailable() if error.request_id:
            if endpoint is not None and endpoint.is_folder:
                return None
            return f"See the request id {error.request_id} in the server's log."
    return None


def protocol_hint(error: CstpError, endpoint: Endpoint | None) -> str | None:
    if endpoint is None:
        return None
    scheme, _, address = endpoint.url.partition("://")
    if (meant := OTHER_PROTOCOLS.get(scheme)) and any(sign in error.message for sign in (SPEAKS_GRPC, SPEAKS_HTTP)):
        return f"Call it by {meant}://{address}, or correct the port: it is from {endpoint.origin}."
    return None


def tls_hint(error: CstpError, endpoint: Endpoint | None) -> str | None:
    """Return a hint for a failed TLS connection, or None for other failures."""
    # gRPC says it in the status text, Python's ssl in the exception below.
    text = f"{error.message} {error.__cause__}".lower()
    if endpoint is None or not any(
        sign in text for sign in (*UNTRUSTED_SIGNS, *NAME_MISMATCH_SIGNS, *NO_TLS_SIGNS, *CONNECTION_LOST_SIGNS)
    ):
        return None
    scheme, _, address = endpoint.url.partition("://")
    if scheme in TLS_SCHEMES:
        return f"If it speaks TLS, its address is {TLS_SCHEMES[scheme]}://{address}."
    if any(sign in text for sign in NO_TLS_SIGNS):
        return f"It does not speak TLS; its address is {'http' if scheme == 'https' else 'grpc'}://{address}."
    if any(sign in text for sign in NAME_MISMATCH_SIGNS):
        return "Its certificate is for another name; call it by that one, with --agent URL or in the agents file."
    if any(sign in text for sign in UNTRUSTED_SIGNS):
        known = f"No CA in {endpoint.ca_file} signed it" if endpoint.ca_file else "No trusted CA signed it"
        return f"{known}: pass the CA with --ca-file FILE, CSTP_CA_FILE, or ca_file in the agents file."
    return None


def connection_hint(endpoint: Endpoint | None) -> str:
    if endpoint is None or endpoint.local:
        return "Start one with `cstp serve --dev`, or name one that runs with --agent NAME or --agent URL."
    scheme, _, address = endpoint.url.partition("://")
    asked = f"Is it running, and is {endpoint.url} its address"
    if scheme in TLS_SCHEMES:
        return f"{asked}, and not {TLS_SCHEMES[scheme]}://{address}? It is from {endpoint.origin}."
    # For a name with several addresses the error is that of the last one; another one may have failed over TLS.
    return f"{asked}? It is from {endpoint.origin}. If the system does not trust its CA, pass --ca-file FILE."


def token_hint(endpoint: Endpoint | None) -> str:
    if endpoint is None or endpoint.token is None:
        return "Pass --token TOKEN, set CSTP_TOKEN, or name an agent of an agents file with --agent NAME."
    return f"The token that was sent is from {endpoint.identified_by}; the server does not accept it."


def session_hint(error: CstpError) -> str | None:
    """Return a hint for a failed call on a chat session, or None if the message suffices."""
    session = shlex.quote(error.metadata.get("chat_session_id", ""))
    match error:
        case errors.SessionNotFound():
            return "Open one with `cstp liaison open`, or list them with `cstp liaison list`."
        case errors.SessionWithAnotherAgent() if error.metadata.get("active_agent") != GUIDE:
            return f"Give it back first: `cstp liaison return --session {session}`."
        case errors.LiaisonAgentUnavailable() if pillar := error.metadata.get("target_pillar"):
            command = f"cstp liaison heartbeat {shlex.quote(pillar)}"
            return f"Try again when it is present; a local agent reports that with `{command}`."
        case errors.Conflict() if "claimed_by" in error.metadata:
            return "Claim it as that instance with --claimant NAME, or wait until its claim has ended."
        case errors.Conflict() if "user_id" in error.metadata:
            return f"Continue with --session {session}, or end it with `cstp liaison close --session {session}`."
    return None


def error_to_json(error: CstpError, next_step: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {"reason": error.reason, "message": error.message}
    if identifier := error.request_id:
        found[REQUEST_ID] = identifier
    if metadata := {key: value for key, value in error.metadata.items() if key != REQUEST_ID}:
        found["metadata"] = metadata
    fields = [{"field": v.field, "description": v.description} for v in error.violations]
    blocks = [{"guardrailId": b.guardrail_id, "name": b.name, "message": b.message} for b in error.blocks]
    if fields or blocks:
        found["violations"] = [*fields, *blocks]
    if error.retry_after is not None:
        found["retryAfterMs"] = round(error.retry_after * 1000)
    if next_step:
        found["hint"] = next_step
    return found
