"""Detect whether the agent that runs a hook can ask its user: an agent without a terminal, or with a prompt as its
argument, would wait forever.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

MAX_ANCESTORS: Final = 8
"""Maximum number of ancestors that are searched for the agent. Chosen: shells and launchers are one to three."""
PROMPT_OPTION: Final = re.compile(r"-[A-Za-z]*p|--prompt(=.*)?", re.DOTALL)
"""The option with which agents answer a prompt and exit, alone or after other letters."""
ASKING_OPTIONS: Final = frozenset({"-i", "--prompt-interactive", "--interactive", "--acp", "--experimental-acp"})
"""Options with which an agent can ask: an initial prompt, and an editor as its user."""


def is_headless(program: str, process: int) -> bool:
    """Return whether the nearest of a process and its ancestors that is an agent's program cannot ask.

    False without such a program.
    """
    for _ in range(MAX_ANCESTORS):
        if process <= 1:
            break
        parent, words, has_terminal = read_process(process)
        # The words of a shell may contain the name; the program is a separate word, such as `node /usr/bin/gemini`.
        if any(Path(word).stem == program or f"/{program}-cli/" in word for word in words[:6]):
            if ASKING_OPTIONS & set(words):
                return False
            return not has_terminal or any(PROMPT_OPTION.fullmatch(word) for word in words)
        process = parent
    return False


def read_process(process: int) -> tuple[int, list[str], bool]:
    """Return the parent of a process, its words, and whether it reads from a terminal; parent 0 if it is unreadable."""
    folder = Path("/proc", str(process))
    try:
        if not folder.exists():
            return read_process_status(process)
        # After the name, which may contain parentheses, come the state and the parent.
        parent = int(folder.joinpath("stat").read_text().rpartition(")")[2].split()[1])
        words = folder.joinpath("cmdline").read_text(errors="replace").split("\0")
        return parent, words, str((folder / "fd/0").readlink()).startswith(("/dev/pts/", "/dev/tty", "/dev/console"))
    except (OSError, ValueError, IndexError):
        return 0, [], False


def read_process_status(process: int) -> tuple[int, list[str], bool]:
    """Return the same where the system has no /proc, such as macOS. Raises OSError, ValueError and IndexError."""
    command = ["ps", "-o", "ppid=,tty=,args=", "-p", str(process)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return int(shown[0]), shown[2:], not shown[1].startswith("?")
