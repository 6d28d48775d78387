"""Calls with more words than guardrails read at once: what is data is left out, and the rest is read in parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

MAX_DESCRIPTION_CHARACTERS: Final = 8000
"""Maximum length of the description of an action, as the contract has it."""
OVERLAP: Final = 1000
"""How much of a part the next one repeats. Chosen: longer than what rules look for, so that no part cuts it in two."""
MAX_CALL_CHARACTERS: Final = 131_072
"""Maximum length of a call that is judged: that of an argument of a program on Linux (MAX_ARG_STRLEN), so of a command
that a shell is started with."""

# Space is what shells take for it. Others, such as a carriage return, are part of the word beside them, so of the
# delimiter, and the text would end at another line than is read here.
HARMLESS: Final = r"[ \t]*(?:(?:cd|mkdir(?: -p)?) [\w./~-]+[ \t]*(?:&&|;|$)[ \t]*)*"
"""What may stand before `cat`: nothing that makes another program of it, or of where it writes."""
FILE: Final = r">>?[ \t]*[\w./~-]+"
DELIMITER: Final = r"""<<[ \t]*(['"])(\w+)\1"""
WRITING: Final = re.compile(
    rf"{HARMLESS}cat[ \t]+(?:{FILE}[ \t]*{DELIMITER}|{DELIMITER.replace('1', '3')}[ \t]*{FILE})[ \t]*"
)
"""A line that writes the lines after it to a file, as they are: since the delimiter is quoted, nothing is expanded."""


def omit_written_text(command: str) -> str:
    """Return a shell command without the texts that it writes to files by `cat > FILE <<'END'`.

    They are data, like what an editing tool writes. From the first line on that could be read in another way, the
    command is returned as it is.
    """
    kept: list[str] = []
    lines = command.split("\n")
    while lines:
        found = WRITING.fullmatch(lines[0])
        delimiter = found and (found[2] or found[4])
        if delimiter and delimiter in lines[1:]:
            end = lines.index(delimiter, 1)
            kept += [lines[0], "…", delimiter]
            del lines[: end + 1]
        elif re.fullmatch(HARMLESS, lines[0]):
            kept.append(lines.pop(0))
        else:
            break
    return "\n".join(kept + lines)


def split_description(text: str) -> Sequence[str]:
    """Return a text in parts that guardrails can read, each of which begins with the end of the one before it."""
    starts = range(0, max(len(text) - OVERLAP, 1), MAX_DESCRIPTION_CHARACTERS - OVERLAP)
    return [text[start : start + MAX_DESCRIPTION_CHARACTERS] for start in starts]
