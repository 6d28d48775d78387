"""What runs functions that block, so that an event loop need not wait for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class RunBlocking(Protocol):
    """Runs a function on a thread, in the context of the caller."""

    async def __call__(self, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the function returns. Raises what it raises."""
