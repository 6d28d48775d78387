"""How each coding agent is started without a network, and how its model calls its tools."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tests.agents.hosts.scripted_model import ToolCall

PROMPT = "Lower the tax."
EDITED = "src/money.py"
OLD, NEW = "TAX = 19\n", "TAX = 7\n"
PATCH = f"""*** Begin Patch
*** Update File: {EDITED}
@@
-{OLD}+{NEW}*** End Patch
"""
ACTION = {"description": "Free some disk space", "command": "rm -r victim", "directory": "PROJECT"}


@dataclass(frozen=True)
class Agent:
    """A coding agent; `MODEL` in its texts stands for the URL of the model, `PROJECT` for the folder of the project."""

    host: str
    """Its name for `cstp install`."""
    command: Sequence[str]
    environment: Mapping[str, str]
    shell: Callable[[str], ToolCall]
    """Returns the call that runs a command."""
    edits: Sequence[ToolCall]
    """The calls that change the file EDITED, the last one in fact."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Its settings, by their paths in the home folder."""
    check: ToolCall | None = None
    """The call of the tool `check_action` of our MCP server, if it is tried."""
    told_before_tool: bool = True
    """Whether what governs a file reaches the model with the result of the edit, or as a text before it."""


def shell_of(tool: str, argument: str = "command", **others: str) -> Callable[[str], ToolCall]:
    """Return a function that returns calls of a shell."""
    return lambda command: ToolCall(tool, {argument: command, **others})


AGENTS = (
    Agent(
        "claude-code",
        ["claude", "-p", PROMPT, "--model", "scripted", "--allowedTools", "Bash,Read,Edit,mcp__cstp"],
        {
            "ANTHROPIC_API_KEY": "none",
            "ANTHROPIC_BASE_URL": "MODEL",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "DISABLE_TELEMETRY": "1",
        },
        shell_of("Bash", description="Run a command"),
        [
            ToolCall("Read", {"file_path": f"PROJECT/{EDITED}"}),
            ToolCall("Edit", {"file_path": f"PROJECT/{EDITED}", "old_string": OLD.strip(), "new_string": NEW.strip()}),
        ],
        check=ToolCall("mcp__cstp__check_action", ACTION),
    ),
    Agent(
        "codex",
        [
            *("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
            *("--dangerously-bypass-hook-trust", PROMPT),
        ],
        {"SCRIPTED_KEY": "none"},
        shell_of("exec_command", "cmd"),
        [ToolCall("apply_patch", PATCH)],
        {
            ".codex/config.toml": """model = "gpt-5.5"
model_provider = "scripted"
check_for_update_on_startup = false
analytics.enabled = false

[model_providers.scripted]
name = "scripted"
base_url = "MODEL/v1"
wire_api = "responses"
env_key = "SCRIPTED_KEY"
"""
        },
        check=ToolCall("check_action", ACTION, "mcp__cstp"),
    ),
    Agent(
        "gemini-cli",
        ["gemini", "--approval-mode", "yolo", "-p", PROMPT],
        {"GEMINI_API_KEY": "none", "GEMINI_CLI_TRUST_WORKSPACE": "true", "GOOGLE_GEMINI_BASE_URL": "MODEL"},
        shell_of("run_shell_command", description="Run a command"),
        [
            ToolCall("read_file", {"file_path": f"PROJECT/{EDITED}"}),
            ToolCall(
                "replace",
                {
                    "file_path": f"PROJECT/{EDITED}",
                    "instruction": "Lower the tax",
                    "old_string": OLD.strip(),
                    "new_string": NEW.strip(),
                },
            ),
        ],
        {
            ".gemini/settings.json": """{
  "general": {"enableAutoUpdate": false},
  "privacy": {"usageStatisticsEnabled": false},
  "security": {"auth": {"selectedType": "gemini-api-key"}}
}
"""
        },
    ),
    Agent(
        "copilot",
        ["copilot", "--allow-all-tools", "-p", PROMPT],
        {
            "COPILOT_OFFLINE": "true",
            "COPILOT_PROVIDER_BASE_URL": "MODEL/v1",
            "COPILOT_PROVIDER_API_KEY": "none",
            "COPILOT_MODEL": "scripted",
        },
        shell_of("bash", description="Run a command"),
        [ToolCall("edit", {"path": f"PROJECT/{EDITED}", "old_str": OLD.strip(), "new_str": NEW.strip()})],
    ),
    Agent(
        "qwen-code",
        ["qwen", "--approval-mode", "yolo", "-p", PROMPT],
        {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": "MODEL/v1", "OPENAI_MODEL": "scripted"},
        shell_of("run_shell_command", description="Run a command"),
        [
            ToolCall("read_file", {"file_path": f"PROJECT/{EDITED}"}),
            ToolCall(
                "edit",
                {"file_path": f"PROJECT/{EDITED}", "old_string": OLD.strip(), "new_string": NEW.strip()},
            ),
        ],
        # It writes its version into settings that have none.
        {
            ".qwen/settings.json": """{
  "general": {"enableAutoUpdate": false},
  "privacy": {"usageStatisticsEnabled": false},
  "$version": 4
}
"""
        },
    ),
    Agent(
        "opencode",
        ["opencode", "run", PROMPT],
        {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_MODELS_FETCH": "1"},
        shell_of("bash", description="Run a command"),
        [
            ToolCall("read", {"filePath": f"PROJECT/{EDITED}"}),
            ToolCall(
                "edit",
                {"filePath": f"PROJECT/{EDITED}", "oldString": OLD.strip(), "newString": NEW.strip()},
            ),
        ],
        {
            ".config/opencode/opencode.json": """{
  "model": "scripted/scripted",
  "small_model": "scripted/scripted",
  "provider": {
    "scripted": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "MODEL/v1", "apiKey": "none"},
      "models": {"scripted": {"tool_call": true}}
    }
  }
}
"""
        },
    ),
    Agent(
        "pi",
        ["pi", "--model", "scripted/scripted", "--tools", "+codemode", "-p", PROMPT],
        {"PI_OFFLINE": "1", "PI_TELEMETRY": "0"},
        shell_of("bash"),
        [
            ToolCall(
                "edit",
                {"path": f"PROJECT/{EDITED}", "edits": [{"oldText": OLD.strip(), "newText": NEW.strip()}]},
            )
        ],
        {
            ".pi/agent/models.json": """{
  "providers": {
    "scripted": {
      "baseUrl": "MODEL/v1",
      "api": "openai-completions",
      "apiKey": "none",
      "models": [{"id": "scripted"}]
    }
  }
}
"""
        },
    ),
)
