"""Libraries that are preloaded into a server, to stand between it and the system."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compile_preload(folder: Path, name: str) -> Path:
    """Compile a C file of this package into a folder. Skips the test without a compiler or outside of Linux."""
    compiler = shutil.which("cc")
    if compiler is None or not Path("/proc/self/fd").exists():
        pytest.skip("a C compiler and Linux are needed to stand between a server and the system")
    source, library = Path(__file__).with_name(f"{name}.c"), folder / f"{name}.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    return library
