"""Failed calls as errors of the protocol, for prompts, resources and completions."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import mcp_types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from pydantic import ValidationError

from cstp_grpc.contract.errors import CstpError, InvalidArgument, MethodNotFound, NotFound
from cstp_grpc.contract.json_codec import CodecError

logger = logging.getLogger(__name__)

RESOURCE_NOT_FOUND: Final = -32002
"""The code for a resource that does not exist, up to the revision 2025-11-25 (server/resources, "Error Handling");
later revisions use INVALID_PARAMS.
"""


def resource_not_found_error(uri: str, version: str) -> MCPError:
    """Return the error for a resource that does not exist, in a revision of the protocol."""
    code = RESOURCE_NOT_FOUND if version in HANDSHAKE_PROTOCOL_VERSIONS else mcp_types.INVALID_PARAMS
    return MCPError(code=code, message="Resource not found", data={"uri": uri})


def invalid_params_error(message: str) -> MCPError:
    return MCPError(code=mcp_types.INVALID_PARAMS, message=message)


@contextmanager
def failures_as_protocol_errors() -> Iterator[None]:
    """Turn failed calls within the block into errors that name their reason."""
    try:
        yield
    except CodecError as error:
        raise invalid_params_error(str(error)) from error
    except CstpError as error:
        invalid = isinstance(error, InvalidArgument | NotFound | MethodNotFound)
        code = mcp_types.INVALID_PARAMS if invalid else mcp_types.INTERNAL_ERROR
        details = {"reason": error.reason, "metadata": error.metadata}
        raise MCPError(code=code, message=error.message, data=details) from error


async def hide_unexpected_failures(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Answer a request; unexpected failures go only to the log. Raises MCPError and ValidationError."""
    try:
        return await call_next(ctx)
    except (MCPError, ValidationError):
        # For a ValidationError, the SDK sends neither the input nor the text of the library.
        raise
    except Exception as error:
        # The SDK would send the text to hosts of 2025-11-25.
        logger.exception("%s failed", ctx.method)
        raise MCPError(code=mcp_types.INTERNAL_ERROR, message="Internal error; the log has it") from error
