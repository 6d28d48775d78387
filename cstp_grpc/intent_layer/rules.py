"""The rules that nodes are judged by: their names, which stay as they are, how bad a breach is, and what to do."""

from __future__ import annotations

from dataclasses import dataclass

from cstp_grpc.intent_layer.model import Finding, FindingSeverity

TARGET_TOKENS = 3_000
"""How many tokens a node should have at the most."""
MAX_TOKENS = 4_000
"""How many it may have."""
RULES_FILE = ".intent-layer/config.yaml"
"""Where a project says how severe breaches of rules are in it."""
SHOWN_CHARACTERS = 200
"""How much of what stands in a node a message repeats."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule; `meaning` says what is found, `remedy` what to do about it."""

    name: str
    severity: FindingSeverity
    meaning: str
    remedy: str

    def finding(self, file: str, line: int, message: str) -> Finding:
        """Return a breach of the rule; what cannot be printed is replaced in the message."""
        return Finding(self.severity, self.name, file, line, printable(f"{message}; {self.remedy}"))


def printable(text: str) -> str:
    """Return a text on one line."""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def quoted(text: str) -> str:
    """Return a text as a message shows it: in quotation marks, and not too long."""
    return f"“{text if len(text) <= SHOWN_CHARACTERS else f'{text[:SHOWN_CHARACTERS]}…'}”"


def _error(name: str, meaning: str, remedy: str) -> Rule:
    return Rule(name, FindingSeverity.ERROR, meaning, remedy)


def _warning(name: str, meaning: str, remedy: str) -> Rule:
    return Rule(name, FindingSeverity.WARNING, meaning, remedy)


MISSING_SECTION = _error(
    "missing-section",
    "A node has no Purpose, Entry Points or Contracts.",
    "add the section",
)
EMPTY_SECTION = _warning(
    "empty-section",
    "A required section holds nothing, or comments only.",
    "fill it in",
)
DUPLICATE_SECTION = _warning(
    "duplicate-section",
    "A file has two sections of one name; they are read as one.",
    "put them together",
)
OVER_BUDGET = _error(
    "over-budget",
    f"A node has more than {MAX_TOKENS} tokens, its files together.",
    "shorten it, or move what concerns a folder only to a node there",
)
OVER_TARGET = _warning(
    "over-target",
    f"A node has more than {TARGET_TOKENS} tokens, its files together.",
    "shorten it, or move what concerns a folder only to a node there",
)
DEAD_DOWNLINK = _error(
    "dead-downlink",
    "Downlinks names something that is not there.",
    "correct or remove it",
)
DOWNLINK_WITHOUT_NODE = _warning(
    "downlink-without-node",
    "Downlinks names a folder that has no node.",
    "create the node, or remove the downlink",
)
MISSING_DOWNLINK = _warning(
    "missing-downlink",
    "The nearest node above a node does not name it, or its folder, in Downlinks.",
    "add it there",
)
MISSING_ENTRY_POINT = _warning(
    "missing-entry-point",
    "Entry Points links to, or names in inline code, a file or folder that is neither below the node's folder nor "
    "below the project's root.",
    "correct or remove it",
)
ABSOLUTE_PATH = _warning(
    "absolute-path",
    "A link or inline code is a path as one machine has it, such as `/home/…`, `~/…` or `C:\\…`.",
    "write it relative to the project",
)
MISPLACED_CLAUDE_MD = _error(
    "misplaced-claude-md",
    "CLAUDE.md lies below the root of the project.",
    "rename it to AGENTS.md",
)
DIFFERENT_FILES = _warning(
    "different-files",
    "CLAUDE.md and AGENTS.md of one folder differ; both are read.",
    "keep one and make the other a link to it",
)
DEAD_IMPORT = _warning(
    "dead-import",
    "A line such as `@docs/rules.md` names a file that is not there, not in the project, no text, or too much.",
    "correct or remove it",
)
NOT_UTF8 = _error(
    "not-utf-8",
    "A file of a node has bytes that are no UTF-8.",
    "save it as UTF-8",
)
UNREADABLE_FILE = _error(
    "unreadable-file",
    "A file of a node is too large, no regular file, a link out of the project, or may not be read.",
    "make it a file that can be read",
)
UNREADABLE_FOLDER = _warning(
    "unreadable-folder",
    "A folder may not be listed, so that nodes in it are not seen.",
    "allow it to be read, or keep it out of the project",
)
STALE = _warning(
    "stale",
    "Files that a node covers were changed, by commits, after the node was.",
    "see whether the node still says what holds",
)

INVALID_SETTINGS = _error(
    "invalid-settings",
    f"`{RULES_FILE}` names no rule or no severity, or cannot be read; what it says of other rules holds.",
    "correct it",
)

RULES = (
    MISSING_SECTION,
    EMPTY_SECTION,
    DUPLICATE_SECTION,
    OVER_BUDGET,
    OVER_TARGET,
    DEAD_DOWNLINK,
    DOWNLINK_WITHOUT_NODE,
    MISSING_DOWNLINK,
    MISSING_ENTRY_POINT,
    ABSOLUTE_PATH,
    MISPLACED_CLAUDE_MD,
    DIFFERENT_FILES,
    DEAD_IMPORT,
    NOT_UTF8,
    UNREADABLE_FILE,
    UNREADABLE_FOLDER,
    STALE,
    INVALID_SETTINGS,
)
"""All rules."""
