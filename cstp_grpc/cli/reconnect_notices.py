"""What a watch prints while it cannot reach its server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstp_grpc.cli.output import to_printable

if TYPE_CHECKING:
    from cstp_grpc.cli.output import Output
    from cstp_grpc.errors import CstpError


class ReconnectNotices:
    """Prints why a watch was interrupted, each failure once until events arrive again."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._told: set[str] = set()

    def report(self, error: CstpError, _: float) -> None:
        """Print the failure, unless it was printed already."""
        if error.message not in self._told:
            self._told.add(error.message)
            self._out.note(f"{to_printable(error.message)}; trying again until Ctrl-C")

    def reset(self) -> None:
        """Forget the printed failures, because events arrive again."""
        self._told.clear()
