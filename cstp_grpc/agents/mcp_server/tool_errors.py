"""Failed calls as results of tools: the reason, each invalid argument, and what to do next."""

from __future__ import annotations

from typing import Any, Final

import mcp_types

from cstp_grpc.agents.mcp_server.tools import ContractTool
from cstp_grpc.common.quoted_text import quote_name, quote_text
from cstp_grpc.contract import errors
from cstp_grpc.contract.errors import CstpError, FieldViolation
from cstp_grpc.contract.json_codec import CodecError

ERROR_META_KEY: Final = "io.github.cstp/error"
"""The key of the error in `_meta`, for programs."""
UNJUDGED: Final = "NO VERDICT: the action was not checked, so do not do it unless a person tells you to."

NEXT_STEPS: Final[tuple[tuple[type[CstpError], str], ...]] = (
    (errors.InvalidArgument, "Correct the arguments that are named and call the tool again."),
    (errors.AuthenticationRequired, "The token is missing, unknown or expired. Ask a person to give this server one."),
    (errors.PermissionDenied, "Do not try again: ask a person whether this token should have the permission."),
    (errors.NotFound, "Check the identifier, project or path; find_decisions finds the ids of decisions."),
    (errors.Conflict, "Use another id, or repeat exactly what was sent with this one."),
    (errors.RateLimited, "Call less often."),
    (errors.GuardrailEvalFailed, "The rules cannot be evaluated. Ask a person to look at the rulebook."),
    (errors.MethodNotFound, "This server does not offer it, so go on without it."),
    (errors.DeadlineExceeded, "Call the tool again; if that takes as long, go on without it."),
    (errors.ServerUnreachable, "Ask a person to start the CSTP server, or to correct its address."),
    (errors.Unavailable, "Call the tool again in a moment."),
)
"""The next step of an agent: the first that fits. Subclasses come before their bases."""
FINAL_STEP: Final = "Calling it again does not help: tell a person, who can fix it."
LOG_STEP: Final = "Tell a person; the server's log has details under the request id."


def failed_call_result(tool: ContractTool, error: CstpError) -> mcp_types.CallToolResult:
    """Return the result of a tool whose call failed."""
    violations = [FieldViolation(tool.argument_name(each.field), each.description) for each in error.violations]
    lines = [UNJUDGED] if tool.gives_verdict else []
    lines.append(f"{quote_name(error.reason)}: {quote_text(error.message)}")
    lines += [f"- {quote_name(each.field)}: {quote_text(each.description)}" for each in violations]
    lines += [f"- blocked by {quote_name(each.guardrail_id)}: {quote_text(each.message)}" for each in error.blocks]
    lines.append(f"Next step: {next_step(error)}")
    details: dict[str, Any] = {"reason": error.reason, "message": error.message, "metadata": error.metadata}
    details["violations"] = [{"field": each.field, "description": each.description} for each in violations]
    if error.retry_after is not None:
        details["retryAfterMs"] = round(error.retry_after * 1000)
    return mcp_types.CallToolResult(
        content=[mcp_types.TextContent(type="text", text="\n".join(lines))],
        is_error=True,
        _meta={ERROR_META_KEY: details},
    )


def next_step(error: CstpError) -> str:
    if error.retry_after is not None:
        return f"Wait {error.retry_after:g} seconds, then call the tool again."
    if error.final:
        return FINAL_STEP
    step = next((step for kind, step in NEXT_STEPS if isinstance(error, kind)), LOG_STEP)
    return (
        f"{step} The request id is {quote_name(error.request_id)}." if step is LOG_STEP and error.request_id else step
    )


def invalid_arguments_error(error: CodecError) -> errors.InvalidArgument:
    return errors.InvalidArgument("The arguments do not fit the tool's schema.", violations=error.violations)
