"""Events of Codex as they are read, and answers as it reads them: strictly, or not at all."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.agents.hooks.claude_format import find_patched_files
from cstp_grpc.agents.hooks.codex import CHECKED_TOOLS, read_event, wanted_hooks, write_answer
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookMoment
from tests.agents.hooks.payloads import names, payload

PATCH = """*** Begin Patch
*** Add File: docs/new file.md
+*** Update File: not/a/file.py
*** Update File: src/money.py
*** Move to: src/cents.py
@@
-TAX = 19
+TAX = 7
*** Delete File: /project/old.py
*** End Patch
"""
# The members that Codex knows, by event (codex-rs/hooks/schema/generated); others make it drop the answer.
TOP = {"systemMessage", "hookSpecificOutput", "decision", "reason"}
SPECIFIC = {
    "PreToolUse": {"hookEventName", "permissionDecision", "permissionDecisionReason", "additionalContext"},
    "SessionStart": {"hookEventName", "additionalContext"},
    "UserPromptSubmit": {"hookEventName", "additionalContext"},
}


def test_the_files_of_a_patch_are_its_paths_from_the_folder_of_the_session() -> None:
    event = read_event(payload("edit", agent="codex", tool_input={"command": PATCH}, cwd="/project/app"))
    assert event.arguments["files"] == [
        "/project/app/docs/new file.md",
        "/project/app/src/money.py",
        "/project/app/src/cents.py",
        "/project/old.py",
    ]


@pytest.mark.parametrize("space", ["  ", "\t", "\xa0", "\r", "\x0b"], ids=repr)
def test_space_around_a_line_hides_no_file(space: str) -> None:
    patch = f"*** Begin Patch\n*** Add File: a\n+x\n{space}*** Delete File: .env{space}\n*** End Patch"
    assert find_patched_files(patch, "/project") == ["/project/a", "/project/.env"]


@pytest.mark.parametrize("tool_input", [{"command": 7}, {"command": ["apply_patch", PATCH]}], ids=str)
def test_a_patch_that_is_no_text_is_refused(tool_input: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="is no text"):
        read_event(payload("edit", agent="codex", tool_input=tool_input))


@given(st.lists(st.from_regex(r"[a-z]+(/[a-z ]*[a-z]+)?\.py", fullmatch=True), max_size=5), st.text())
def test_every_file_of_a_patch_is_found(paths: list[str], content: str) -> None:
    lines = [f"*** Update File: {path}\n@@\n+{' '.join(content.split())}\n" for path in paths]
    found = find_patched_files(f"*** Begin Patch\n{''.join(lines)}*** End Patch", "/project")
    assert found == list(dict.fromkeys(f"/project/{path}" for path in paths))


@given(
    st.sampled_from(names("codex")),
    st.builds(
        HookAnswer,
        st.sampled_from(HookDecision),
        st.text(min_size=1).filter(str.strip),
        st.text(),
        st.text(),
        st.booleans(),
    ),
)
def test_an_answer_has_only_members_that_codex_knows(name: str, answer: HookAnswer) -> None:
    event = read_event(payload(name, agent="codex"))
    written = write_answer(event, answer)
    assert written.keys() <= TOP
    said = written.get("hookSpecificOutput", {"hookEventName": event.name})
    assert said["hookEventName"] == event.name
    assert said.keys() <= SPECIFIC.get(event.name, {"hookEventName"})
    assert said.get("permissionDecision", "deny") == "deny"


def test_codex_cannot_ask_and_denies() -> None:
    written = write_answer(HookEvent(HookMoment.BEFORE_TOOL), HookAnswer(HookDecision.ASK, "May it?"))
    assert written["hookSpecificOutput"] == {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": "May it?",
    }


def test_the_hook_runs_for_commands_patches_and_mcp_tools() -> None:
    wanted = wanted_hooks("cstp hook codex", seconds=8)
    assert wanted["PreToolUse"]["matcher"] == CHECKED_TOOLS
    for tool in ("Bash", "apply_patch", "mcp__memory__create_entities"):
        assert re.search(CHECKED_TOOLS, tool)
    assert not re.search(CHECKED_TOOLS, "update_plan")
    assert wanted_hooks("cstp hook codex", seconds=8, every_tool=True)["PreToolUse"]["matcher"] == "*"


@pytest.mark.parametrize(("program", "code"), [("raise SystemExit(1)", 2), ("print('{}')", 0)])
def test_a_hook_that_judges_blocks_if_it_fails(program: str, code: int) -> None:
    command = shlex.join([sys.executable, "-c", program])
    (hook,) = wanted_hooks(command, seconds=8)["PreToolUse"]["hooks"]
    done = subprocess.run(hook["command"], shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert bool(done.stderr.strip()) is (code == 2)
