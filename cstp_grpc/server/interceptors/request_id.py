"""Every call has an identifier, in its answer, its errors, the log and the audit trail."""

from __future__ import annotations

import re
import uuid

from cstp_grpc.contract.rpc_errors import REQUEST_ID_KEY as REQUEST_ID

__all__ = ["REQUEST_ID", "choose_request_id"]

ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def choose_request_id(given: str | bytes | None) -> str:
    """Return the caller's `x-request-id` if it is well formed, else a new one."""
    return given if isinstance(given, str) and ACCEPTED.fullmatch(given) else uuid.uuid4().hex
