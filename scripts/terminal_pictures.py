"""Draw docs/images: what commands print in a terminal, on a server with example decisions.

Usage: scripts/terminal_pictures.py
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
import termios
from collections.abc import Mapping
from io import StringIO
from pathlib import Path
from typing import Final

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT: Final = Path(__file__).resolve().parents[1]
CSTP: Final = str(Path(sys.executable).with_name("cstp"))
COLUMNS: Final = 112
# Pictures load nothing from the network: a viewer without the font takes another one.
FORMAT: Final = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
PICTURES: Final[Mapping[str, tuple[str, ...]]] = {
    "stopped": (
        "cstp check --command 'cd /srv && sudo rm -rf /'",
        "cstp check --command 'psql shop -c \"DROP DATABASE shop\"'",
        "cstp check --command 'grep -rn \"drop database\" docs'",
        "cstp query 'deploy everywhere at once' --limit 1",
    ),
}
"""The commands of each picture."""


def run_in_terminal(command: str, folder: Path) -> str:
    """Return what a command prints in a terminal, with its colours."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (40, COLUMNS))
    environment = {
        **os.environ,
        "COLUMNS": str(COLUMNS),
        "TERM": "xterm-256color",
        "PATH": f"{Path(CSTP).parent}:/usr/bin:/bin",
    }
    with subprocess.Popen(command, shell=True, cwd=folder, env=environment, stdout=follower, stderr=follower):
        os.close(follower)
        printed = b""
        while chunk := read_chunk(leader):
            printed += chunk
    os.close(leader)
    return printed.decode().replace("\r\n", "\n")


def read_chunk(leader: int) -> bytes:
    """Return what is printed next; nothing once the terminal is closed."""
    try:
        return os.read(leader, 4096)
    except OSError:
        return b""


def draw_picture(commands: tuple[str, ...], folder: Path) -> str:
    """Return an SVG of a terminal in which commands are run."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for command in commands:
        console.print(Text.assemble(("$ ", "green"), (command, "bold")))
        console.print(Text.from_ansi(run_in_terminal(command, folder)))
    drawn = console.export_svg(title="cstp", code_format=FORMAT, unique_id="terminal")
    return "\n".join(line.rstrip() for line in drawn.splitlines()) + "\n"


def main() -> None:
    """Start a server, and draw all pictures."""
    free = {f"CSTP_{name}": "0" for name in ("GRPC__PORT", "SERVER__PORT", "A2A__GRPC_PORT")}
    free["CSTP_CONSOLE__ENABLED"] = "false"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = [CSTP, "serve", "--dev"]
        with subprocess.Popen(
            command, cwd=folder, env={**os.environ, **free}, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout
            for line in server.stdout:
                if line.startswith("Ctrl-C"):
                    break
            try:
                for picture, commands in PICTURES.items():
                    path = ROOT / "docs" / "images" / f"{picture}.svg"
                    path.parent.mkdir(exist_ok=True)
                    path.write_text(draw_picture(commands, folder), encoding="utf-8")
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
