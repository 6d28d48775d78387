"""The guardrail engine: rulebooks, expressions and their evaluation.

Programs that check actions themselves need these names only; nothing of the server is loaded for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstp_grpc.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from cstp_grpc.contract.enums import Reaction, Severity, Stakes
    from cstp_grpc.core.guardrails.evaluator import UnknownInputPolicy
    from cstp_grpc.core.guardrails.local_rulebook import Rulebook
    from cstp_grpc.core.guardrails.model import Action, Verdict, Violation
    from cstp_grpc.core.guardrails.rulebook import RulebookError
else:
    # Modules of the server, such as `guardrails.module`, are below this package: it must not load the engine for them.
    __getattr__ = lazy_exports(
        __name__,
        {
            "cstp_grpc.contract.enums": "Reaction Severity Stakes",
            "cstp_grpc.core.guardrails.evaluator": "UnknownInputPolicy",
            "cstp_grpc.core.guardrails.local_rulebook": "Rulebook",
            "cstp_grpc.core.guardrails.model": "Action Verdict Violation",
            "cstp_grpc.core.guardrails.rulebook": "RulebookError",
        },
    )

__all__ = [
    "Action",
    "Reaction",
    "Rulebook",
    "RulebookError",
    "Severity",
    "Stakes",
    "UnknownInputPolicy",
    "Verdict",
    "Violation",
]
