"""Calls with more words than guardrails read at once."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.hooks.claude_code import TOOLS, read_event
from cstp_grpc.hooks.event_handler import FailurePolicy, HookSettings, answer_event
from cstp_grpc.hooks.long_calls import (
    MAX_CALL_CHARACTERS,
    MAX_DESCRIPTION_CHARACTERS,
    OVERLAP,
    omit_written_text,
    split_description,
)
from cstp_grpc.hooks.model import HookAnswer, HookDecision
from cstp_grpc.hooks.server_calls import BridgeCalls
from cstp_grpc.hooks.tool_rules import ToolRules
from tests.client.scripted import HttpReply, http_server
from tests.hooks.payloads import payload

RULES = ToolRules.parse(TOOLS)
ALLOWED = {"allowed": True, "violations": [], "warnings": [], "approvalRequired": False}
BLOCKED = {
    **ALLOWED,
    "allowed": False,
    "violations": [{"guardrailId": "x", "message": "No", "severity": "block", "missingInputs": []}],
    "assumed": [],
    "ignoredContext": [],
}
APPROVABLE = {
    **BLOCKED,
    "approvalRequired": True,
    "violations": [{"guardrailId": "x", "message": "Ask", "severity": "approve", "missingInputs": []}],
}


def judge(action: Any) -> Any:
    """Return the verdict of a server by the words of an action."""
    if "FORBIDDEN" in action["description"]:
        return BLOCKED
    return APPROVABLE if "ASK" in action["description"] else ALLOWED


def reply(call: Any) -> Any:
    params = call["params"]
    batch = {"results": [{"verdict": judge(action)} for action in params.get("actions", ())]}
    result = judge(params["action"]) if call["method"] == "cstp.checkGuardrails" else batch
    return {"jsonrpc": "2.0", "id": call["id"], "result": result}


def answer(command: str, policy: FailurePolicy = FailurePolicy.ASK, **replies: Any) -> HookAnswer:
    with http_server(HttpReply(replies.get("reply", reply))) as server:
        calls = BridgeCalls(server.url, None, seconds=5)
        event = read_event(payload("bash", tool_input={"command": command}))
        return answer_event(event, calls, HookSettings(RULES, on_failure=policy))


def test_a_document_that_a_command_writes_is_not_part_of_the_question() -> None:
    body = "FORBIDDEN words in a file\n" * 1000
    assert answer(f"mkdir -p docs && cat > docs/a.md <<'EOF'\n{body}EOF\nls docs") == HookAnswer()
    # As long as it can be read as a whole, it is.
    assert answer("cat > docs/a.md <<'EOF'\nFORBIDDEN\nEOF").decision is HookDecision.DENY


@pytest.mark.parametrize("policy", FailurePolicy)
def test_a_part_that_is_objected_to_decides(policy: FailurePolicy) -> None:
    for place in (0, 7999, 8001, 20_000):
        command = "x" * place + " FORBIDDEN " + "y" * 10_000
        assert answer(command, policy).decision is HookDecision.DENY
    asked = answer("x" * 9000 + " ASK " + "y" * 9000, policy)
    assert asked.decision is HookDecision.ASK
    assert "the guardrails let a person decide" in asked.reason
    assert answer("ASK " + "y" * 9000 + " FORBIDDEN", policy).decision is HookDecision.DENY


@pytest.mark.parametrize(
    ("policy", "decision"),
    [
        (FailurePolicy.ASK, HookDecision.ASK),
        (FailurePolicy.DENY, HookDecision.DENY),
        (FailurePolicy.ALLOW, HookDecision.NONE),
    ],
)
def test_a_call_that_was_judged_in_parts_only_is_left_to_the_policy(
    policy: FailurePolicy, decision: HookDecision
) -> None:
    said = answer("x" * 8001, policy)
    assert said.decision is decision
    assert "8001 characters" in (said.notice or said.reason)


@pytest.mark.parametrize("policy", FailurePolicy)
def test_a_call_that_no_shell_takes_is_denied(policy: FailurePolicy) -> None:
    said = answer("x" * (MAX_CALL_CHARACTERS + 1), policy)
    assert said.decision is HookDecision.DENY
    assert "put its data into a file" in said.reason


@pytest.mark.parametrize("results", [[], [{"verdict": ALLOWED}], [{"error": {"reason": "INTERNAL"}}] * 2], ids=len)
def test_parts_without_a_verdict_allow_nothing(results: list[Any]) -> None:
    response = {"jsonrpc": "2.0", "id": 1, "result": {"results": results}}
    assert answer("x" * 9000, reply=lambda _: response).decision is HookDecision.ASK


@pytest.mark.parametrize(
    "command",
    [
        "cat > a.txt <<'EOF'\n{body}\nEOF",
        "cat >> \"a.txt\" <<'EOF'\n{body}\nEOF".replace('"', ""),
        'cat <<"END" > src/a.py\n{body}\nEND\npython src/a.py',
        "cd src && cat > a.py << 'EOF'\n{body}\nEOF\necho done | tee log",
        "mkdir -p a/b\ncd a/b\ncat > c <<'X'\n{body}\nX\ncat > d <<'Y'\n{body}\nY",
    ],
)
def test_written_text_is_left_out(command: str) -> None:
    left = omit_written_text(command.replace("{body}", "rm -rf /\n'\"$("))
    assert "rm -rf" not in left
    assert left.startswith(command.split("{body}")[0])


@pytest.mark.parametrize(
    "command",
    [
        "bash <<'EOF'\nrm -rf /\nEOF",
        "cat <<'EOF' | bash\nrm -rf /\nEOF",
        "cat > a <<EOF\n$(rm -rf /)\nEOF",
        "echo '\ncat > a <<'EOF'\nrm -rf /\nEOF",
        "cat() { bash; }\ncat > a <<'EOF'\nrm -rf /\nEOF",
        "alias cat=bash\ncat > a <<'EOF'\nrm -rf /\nEOF",
        "hash -p /bin/sh cat\ncat > a <<'EOF'\nrm -rf /\nEOF",
        "PATH=/tmp/x\ncat > a <<'EOF'\nrm -rf /\nEOF",
        "(cat > a <<'EOF'\nrm -rf /\nEOF\n)",
        "cat > >(bash) <<'EOF'\nrm -rf /\nEOF",
        "cat > a <<'EOF'; bash a\nrm -rf /\nEOF",
        "cat > a <<'EOF' \\\nrm -rf /\nEOF",
        "cat > a <<-'EOF'\nrm -rf /\n\tEOF\n",
        "cat > a <<'EOF'\nrm -rf /",
        "cat > a <<'EOF'\nx\nEOF\nrm -rf /",
    ],
)
def test_what_could_be_executed_is_kept(command: str) -> None:
    assert "rm -rf /" in omit_written_text(command)


@pytest.mark.parametrize("space", ["\r", "\x0b", "\x0c", "\x1c", "\x85", "\xa0", "\u2003"], ids=repr)
@pytest.mark.parametrize("line", ["cat > a <<'EOF'{space}", "cat > a <<{space}'EOF'"])
def test_what_a_shell_takes_for_no_space_is_part_of_the_delimiter(tmp_path: Path, line: str, space: str) -> None:
    delimiter = f"{space}EOF" if "<<{" in line else f"EOF{space}"
    command = f"{line.format(space=space)}\nx\n{delimiter}\ntouch proof\nEOF\n"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=False, capture_output=True)
    assert (tmp_path / "proof").exists()
    assert "touch proof" in omit_written_text(command)


@given(st.text(st.sampled_from("EOFX \n'\"$(`\\cat>a|<")))
def test_a_text_ends_at_its_delimiter_whatever_is_in_it(body: str) -> None:
    command = f"cat > out <<'DONE'\n{body}\nDONE\necho {body}"
    assert omit_written_text(command) == f"cat > out <<'DONE'\n…\nDONE\necho {body}"


def test_a_shell_writes_what_is_left_out(tmp_path: Path) -> None:
    body = "echo executed > proof\n$(touch proof) `touch proof` '\" \\\n)"
    command = f"cat > out <<'EOF'\n{body}\nEOF"
    assert omit_written_text(command) == "cat > out <<'EOF'\n…\nEOF"
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    assert (tmp_path / "out").read_text() == body + "\n"
    assert not (tmp_path / "proof").exists()


@given(st.integers(0, 60_000))
def test_every_stretch_of_a_text_is_in_one_part(length: int) -> None:
    text = "".join(chr(0x4E00 + number % 20_000) for number in range(length))
    parts = split_description(text)
    assert all(len(part) <= MAX_DESCRIPTION_CHARACTERS for part in parts)
    for start in range(0, max(length - OVERLAP, 1), 97):
        assert any(text[start : start + OVERLAP] in part for part in parts)
    assert sum(map(len, parts)) - OVERLAP * (len(parts) - 1) == length
