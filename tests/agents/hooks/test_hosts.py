"""What holds for every coding agent whose hooks are answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.agents.hooks.hosts import HOSTS, load_host
from cstp_grpc.agents.hooks.model import HookAnswer, HookDecision, HookEvent, HookMoment
from cstp_grpc.agents.hooks.settings_text import install_hooks, is_made_by_install, remove_hooks, runs_command
from cstp_grpc.agents.hooks.tool_rules import ToolRules
from cstp_grpc.core.commands.places import classify_path
from tests.agents.hooks.payloads import RECORDINGS, host_of, names, payload

EVENTS = [(agent, name) for agent in RECORDINGS for name in names(agent)]
MOMENTS = {
    "session_start": HookMoment.SESSION_STARTED,
    "user_prompt_submit": HookMoment.PROMPT_SUBMITTED,
    "bash": HookMoment.BEFORE_TOOL,
    "edit": HookMoment.BEFORE_TOOL,
    "write": HookMoment.BEFORE_TOOL,
    "mcp": HookMoment.BEFORE_TOOL,
    "edited": HookMoment.AFTER_TOOL,
    "edit_failed": HookMoment.AFTER_TOOL,
    "stop": HookMoment.TURN_ENDED,
    "other": HookMoment.OTHER,
}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
reasons = st.text(min_size=1).filter(str.strip)
answers = st.one_of(
    st.builds(HookAnswer, context=st.text(), notice=st.text()),
    st.builds(HookAnswer, st.sampled_from([HookDecision.ASK, HookDecision.DENY]), reasons, st.text(), st.text()),
)


@pytest.mark.parametrize(("agent", "name"), EVENTS)
def test_a_recorded_event_is_read(agent: str, name: str) -> None:
    event = host_of(agent).read_event(payload(name, agent=agent))
    assert event.moment is MOMENTS[name]
    assert event.folder == "/project"
    assert event.failed is (name == "edit_failed")


@given(st.sampled_from(EVENTS), st.data())
def test_any_other_event_is_read_or_refused(recorded: tuple[str, str], data: st.DataObject) -> None:
    agent, name = recorded
    event = payload(name, agent=agent)
    member = data.draw(st.sampled_from(sorted(event)))
    with suppress(ValueError):
        assert host_of(agent).read_event({**event, member: data.draw(json_values)}).folder


@pytest.mark.parametrize("agent", RECORDINGS)
@pytest.mark.parametrize("name", ["", None])
def test_an_event_without_a_name_is_refused(agent: str, name: str | None) -> None:
    with pytest.raises(ValueError, match="names no event"):
        host_of(agent).read_event(payload("bash", agent=agent, hook_event_name=name))


@pytest.mark.parametrize("agent", RECORDINGS)
def test_a_command_an_edit_and_an_end_are_read_whole(agent: str) -> None:
    host = host_of(agent)
    rules = ToolRules.parse(host.tools)
    command = host.read_event(payload("bash", agent=agent))
    assert rules.question_about(command.tool, command.arguments, command.folder).description == "npm test"
    edit, edited = (host.read_event(payload(name, agent=agent)) for name in ("edit", "edited"))
    question = rules.question_about(edit.tool, edit.arguments, edit.folder)
    assert (question.ask, question.description, question.paths) == ("announce", "Edit src/money.py", ("src/money.py",))
    assert edit.call_id
    assert edit.call_id == edited.call_id != command.call_id
    assert question == rules.question_about(edited.tool, edited.arguments, edited.folder)
    if "user_prompt_submit" in names(agent):
        prompted = host.read_event(payload("user_prompt_submit", agent=agent))
        assert prompted.prompt == "Drop the orders table in place"


@given(st.sampled_from(EVENTS), answers)
def test_no_answer_allows_a_tool_call(recorded: tuple[str, str], answer: HookAnswer) -> None:
    agent, name = recorded
    host = host_of(agent)
    written = json.dumps(host.write_answer(host.read_event(payload(name, agent=agent)), answer))
    assert '"approve"' not in written
    assert '"ask"' not in written or answer.decision is HookDecision.ASK
    denying = answer.decision is HookDecision.DENY and MOMENTS[name] is HookMoment.BEFORE_TOOL
    assert ('"deny"' in written or '"block"' in written) or not denying


@pytest.mark.parametrize("agent", HOSTS)
@given(reasons)
def test_an_event_that_could_not_be_read_is_asked_about_or_denied(agent: str, reason: str) -> None:
    unread = HookEvent(HookMoment.BEFORE_TOOL)
    written = json.dumps(load_host(agent).write_answer(unread, HookAnswer(HookDecision.ASK, reason)))
    assert '"ask"' in written or '"deny"' in written
    assert json.dumps(reason)[1:-1] in written


@pytest.mark.parametrize("agent", HOSTS)
def test_rules_protect_the_files_with_the_hooks(agent: str) -> None:
    for path in load_host(agent).settings_files.values():
        places = classify_path(path, "/home/ada/shop", "/home/ada/shop")
        assert "agent-settings" in places, f"cstp_grpc/core/commands/places.py: AGENT_SETTINGS lacks {path}"


@pytest.mark.parametrize("agent", [each for each in HOSTS if load_host(each).write_plugin is None])
@pytest.mark.parametrize("every_tool", [False, True])
def test_hooks_are_put_into_settings_and_taken_out_again(agent: str, every_tool: bool) -> None:
    host = load_host(agent)

    def is_ours(hook: Any) -> bool:
        return runs_command(hook, ("hook", agent))

    command = f"'/opt/my venv/bin/cstp' hook {agent} --project shop"
    wanted = host.wanted_hooks(command, seconds=8, every_tool=every_tool)
    installed = install_hooks(host.empty_settings, wanted, is_ours)
    assert json.loads(installed)["hooks"].keys() == wanted.keys()
    assert install_hooks(installed, wanted, is_ours) == installed
    assert is_made_by_install(installed, host.empty_settings, is_ours)
    left = remove_hooks(installed, is_ours)
    assert json.loads(left) == {key: value for key, value in json.loads(host.empty_settings).items() if key != "hooks"}
    assert not is_made_by_install(left, host.empty_settings, is_ours)


@pytest.mark.parametrize(
    ("agent", "tool", "argument"),
    [
        ("opencode", "bash", "workdir"),
        ("qwen-code", "run_shell_command", "directory"),
        ("qwen-code", "monitor", "directory"),
        ("gemini-cli", "run_shell_command", "dir_path"),
    ],
)
@pytest.mark.parametrize(
    ("named", "meant"), [("/", "/"), ("../other", "/other"), ("src", "/project/src"), (None, "/project")]
)
def test_a_command_runs_in_the_folder_that_its_call_names(
    agent: str, tool: str, argument: str, named: str | None, meant: str
) -> None:
    arguments = {"command": "npm test", argument: named}
    assert invocation(agent, tool, arguments) == {"command": "npm test", "directory": meant}


@pytest.mark.parametrize(
    ("agent", "tool", "argument"),
    [
        ("claude-code", "Grep", "glob"),
        ("copilot-cli", "grep", "glob"),
        ("copilot", "grep_search", "includePattern"),
        ("cursor", "Grep", "glob"),
        ("gemini-cli", "search_file_content", "include"),
        ("gemini-cli", "grep_search", "include_pattern"),
        ("opencode", "grep", "include"),
        ("pi", "grep", "glob"),
        ("qwen-code", "grep_search", "glob"),
    ],
)
def test_the_files_that_a_search_is_limited_to_are_read(agent: str, tool: str, argument: str) -> None:
    assert invocation(agent, tool, {"pattern": "KEY", argument: ".env"})["reads"] == [".env"]


def invocation(agent: str, tool: str, arguments: dict[str, Any]) -> Mapping[str, Any]:
    """Return the fields of the action about a call."""
    host = host_of(agent)
    event = host.read_event(payload("edit", agent=agent, tool_name=tool, tool_input=arguments))
    return ToolRules.parse(host.tools).question_about(event.tool, event.arguments, event.folder).invocation
