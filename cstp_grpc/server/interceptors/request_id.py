"""Every call has an identifier, in its answer, its errors, the log and the audit trail."""

from __future__ import annotations

import re
import uuid
from typing import Any

from cstp_grpc.server.interceptors.chain import Call, Proceed
from cstp_grpc.server.status import REQUEST_ID

ACCEPTED = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_id(call: Call, request: Any, proceed: Proceed) -> Any:
    """Take the caller's `x-request-id` where it is well formed, else make one; send it back as trailing metadata."""
    given = call.metadata.get(REQUEST_ID)
    call.request_id = given if isinstance(given, str) and ACCEPTED.fullmatch(given) else uuid.uuid4().hex
    call.context.set_trailing_metadata(((REQUEST_ID, call.request_id),))
    return proceed(call, request)
