"""The exceptions that servers answer with."""

from __future__ import annotations

from cstp_grpc.contract.rpc_errors import ERROR_CLASSES, REASON_CODES

SERVER_ERRORS = [kind for reason, kind in ERROR_CLASSES.items() if not REASON_CODES[reason].bridge_only]
