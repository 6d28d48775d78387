"""Hooks in the settings of an agent: what is put in is taken out again, and nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.agents.hooks.claude_code import wanted_hooks
from cstp_grpc.agents.hooks.settings_text import install_hooks, remove_hooks, runs_command
from cstp_grpc.contract.errors import ConfigError

WANTED = wanted_hooks("/opt/venv/bin/cstp hook claude-code --project shop", seconds=8)
OTHER = {"type": "command", "command": "./lint.sh"}

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)
other_hooks = st.builds(lambda command: {"type": "command", "command": command}, st.text())
groups = st.builds(
    lambda matcher, hooks: {"matcher": matcher, "hooks": hooks},
    st.text(),
    st.lists(other_hooks, min_size=1, max_size=3),
)
# Agents without groups have hooks in their places.
hook_settings = st.dictionaries(st.sampled_from([*WANTED, "Notification"]), st.lists(groups | other_hooks, max_size=3))
settings = st.dictionaries(st.text().filter(lambda key: key != "hooks"), values, max_size=4)
layouts = st.sampled_from([{}, {"indent": 2}, {"indent": 4}, {"indent": "\t"}, {"separators": (" ,  ", " :\t")}])
texts = st.builds(
    lambda members, hooks, first, layout, ascii_only: json.dumps(
        members if hooks is None else {"hooks": hooks} | members if first else members | {"hooks": hooks},
        ensure_ascii=ascii_only,
        **layout,
    ),
    settings,
    st.none() | hook_settings,
    st.booleans(),
    layouts,
    st.booleans(),
)
endings = st.sampled_from(["", "\n", "\r\n", " \n\n"])


def is_ours(hook: Any) -> bool:
    return runs_command(hook, ["hook", "claude-code"])


@given(texts, endings)
def test_what_is_installed_is_uninstalled_to_the_byte(text: str, ending: str) -> None:
    before = ending + text.replace("\n", ending) + ending if ending == "\r\n" else text + ending
    installed = install_hooks(before, WANTED, is_ours)
    assert installed != before
    assert remove_hooks(installed, is_ours) == before


@given(texts, endings)
def test_installing_changes_nothing_else_and_is_idempotent(text: str, ending: str) -> None:
    before = json.loads(text)
    installed = install_hooks(text + ending, WANTED, is_ours)
    after = json.loads(installed)
    assert {key: value for key, value in after.items() if key != "hooks"} == {
        key: value for key, value in before.items() if key != "hooks"
    }
    for event in {*WANTED, *before.get("hooks", {})}:
        added = [WANTED[event]] if event in WANTED else []
        assert after["hooks"][event] == before.get("hooks", {}).get(event, []) + added
    assert install_hooks(installed, WANTED, is_ours) == installed


@given(texts, endings)
def test_hooks_without_groups_are_put_in_and_taken_out_to_the_byte(text: str, ending: str) -> None:
    hook = {"type": "command", "command": "cstp hook claude-code", "timeout": 15}
    wanted = {"SessionStart": hook, "PreToolUse": {**hook, "matcher": "Write"}}
    installed = install_hooks(text + ending, wanted, is_ours)
    for event in wanted:
        assert json.loads(installed)["hooks"][event][-1] == wanted[event]
    assert install_hooks(installed, wanted, is_ours) == installed
    assert remove_hooks(installed, is_ours) == text + ending


@given(texts)
def test_other_options_replace_the_hook(text: str) -> None:
    renewed = wanted_hooks("cstp hook claude-code --on-failure deny", seconds=8, every_tool=True)
    installed = install_hooks(install_hooks(text, WANTED, is_ours), renewed, is_ours)
    assert remove_hooks(installed, is_ours) == text
    assert json.loads(installed) == json.loads(install_hooks(text, renewed, is_ours))


@given(texts)
def test_settings_without_our_hook_stay_as_they_are(text: str) -> None:
    assert remove_hooks(text, is_ours) == text


def test_hooks_that_users_put_beside_or_into_ours_stay() -> None:
    ours = {"type": "command", "command": "cstp hook claude-code"}
    before = {
        "hooks": {
            "PreToolUse": [
                {"matcher": "Bash", "hooks": [ours, OTHER]},
                {"matcher": "Bash", "hooks": [ours]},
                {"matcher": "Edit", "hooks": [OTHER]},
                {"matcher": "Bash", "hooks": [OTHER, ours, ours]},
            ],
            "Stop": [{"hooks": [ours]}],
        },
        "model": "opus",
    }
    left = json.loads(remove_hooks(json.dumps(before, indent=2), is_ours))
    kept = [{"matcher": matcher, "hooks": [OTHER]} for matcher in ("Bash", "Edit", "Bash")]
    assert left == {"hooks": {"PreToolUse": kept}, "model": "opus"}


@pytest.mark.parametrize(
    "command",
    [
        "cstp hook claude-code",
        "/opt/my\\ venv/bin/cstp hook claude-code --local",
        "'/opt/my venv/bin/cstp' hook claude-code",
        "/usr/bin/python3 -m cstp_grpc hook claude-code --as claude",
    ],
)
def test_our_hook_is_known_however_it_is_called(command: str) -> None:
    assert is_ours({"type": "command", "command": command})


@pytest.mark.parametrize(
    "hook",
    [
        None,
        "cstp hook claude-code",
        {"type": "http", "url": "http://localhost/cstp hook claude-code"},
        {"command": 7},
        {"command": ""},
        {"command": "cstp hook"},
        {"command": "cstp hook cursor"},
        {"command": "echo cstp hook claude-code"},
        {"command": "notcstp hook claude-code"},
        {"command": "cstp 'unclosed"},
    ],
)
def test_other_hooks_are_not_ours(hook: Any) -> None:
    assert not is_ours(hook)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "not JSON"),
        ("// comments\n{}", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"a": 1, "a": 2}', "key twice"),
        ('{"hooks": []}', "`hooks` is not an object"),
        ('{"hooks": {"Stop": {}}}', "`hooks.Stop` is not a list"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_settings_that_are_not_understood_are_refused(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        install_hooks(text, WANTED, is_ours)
    with pytest.raises(ConfigError, match=problem):
        remove_hooks(text, is_ours)
