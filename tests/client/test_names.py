"""The names that the package of the clients offers."""

from __future__ import annotations

import subprocess
import sys
from itertools import permutations

import pytest


@pytest.mark.parametrize("names", list(permutations(["Announced", "Blocked", "guard"], 2)), ids="-".join)
def test_names_are_the_same_in_whichever_order_they_are_imported(names: tuple[str, ...]) -> None:
    program = (
        f"from cstp_grpc.client import {', '.join(names)}; import cstp_grpc.client as c; print(type(c.guard).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "function\n"
