"""What works with the package alone and with each extra, and what is said where an extra is missing."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from cstp_grpc.common.extras import DISTRIBUTION, EXTRAS, MissingExtra, missing_extra, require_extra
from tests.agents.hooks.payloads import encode, payload
from tests.databases import write_journal
from tests.harness import TOKENS, bridging, running, settings
from tests.installations import (
    OWN_PACKAGES,
    PROJECT,
    ROOT,
    absent_libraries,
    distributions_by_library,
    installed_distributions,
    normalize_name,
    requirements_of,
    run_with_extras,
)
from tests.named_case import named_case

FOR_DEVELOPERS = "dev"
SHOW_ALL_HELP = """
import click
from cstp_grpc.cli.main import main

def show(command, path):
    context = click.Context(command, info_name=path[-1])
    print(" ".join(path), "-", len(command.get_help(context)))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            show(command.get_command(context, name), [*path, name])

show(main, ["cstp"])
"""
"""Prints each command with the length of its help."""
RUN_COMMANDS = """
import json, sys
from click.testing import CliRunner
from cstp_grpc.cli.main import main

for command in sys.argv[1:]:
    done = CliRunner().invoke(main, command.split())
    print(json.dumps([done.exit_code, done.stdout, done.stderr]))
"""
"""Runs commands one after the other and prints for each how it ended and what it printed."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which commands run and which has no settings."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    return home


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a server, over gRPC and over HTTP."""
    wanted = settings(tmp_path_factory.mktemp("server") / "data")
    with running(wanted) as app, bridging(wanted, app.target) as url:
        yield f"grpc://{app.target}", url


def run_commands(commands: Iterable[str], folder: Path) -> list[tuple[int, str, str]]:
    """Return the exit code, the output and the errors of commands, run by one process with the package alone."""
    (folder / "run_commands.py").write_text(RUN_COMMANDS)
    done = run_with_extras(commands, module="run_commands", env={"PYTHONPATH": f"{ROOT}:{folder}", "HOME": str(folder)})
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def imported_libraries() -> dict[str, set[str]]:
    """Return the libraries that our packages import, each with the modules that do so."""
    found: dict[str, set[str]] = {}
    paths = (path for package in OWN_PACKAGES for path in (ROOT / package).rglob("*.py"))
    for path in (path for path in paths if "gen" not in path.parts):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for library in {name.partition(".")[0] for name in names}:
                found.setdefault(library, set()).add(str(path.relative_to(ROOT)))
    return {name: paths for name, paths in found.items() if name not in sys.stdlib_module_names | OWN_PACKAGES}


def test_every_imported_library_is_of_the_package_or_of_an_extra() -> None:
    extras = [name for name in PROJECT["optional-dependencies"] if name != FOR_DEVELOPERS]
    required = {normalize_name(each.name) for each in requirements_of(extras)}
    # Each is part of what one of the others promises: `pyjwt[crypto]`, the exact versions of Pydantic's core and of the
    # types of MCP, the event loops that the MCP SDK runs on, and the core of LangChain.
    required |= {"cryptography", "pydantic-core", "mcp-types", "anyio", "langchain-core"}
    frameworks = {
        "agents": "openai-agents",
        "agent_framework": "agent-framework-core",
        "pydantic_ai": "pydantic-ai-slim",
        "llama_index": "llama-index-core",
        "workflows": "llama-index-core",
    }
    known = {**{library: {name} for library, name in frameworks.items()}, **distributions_by_library()}
    # What else is not installed here, such as other frameworks of agents, is looked for under its own name.
    strays = {
        name: paths
        for name, paths in imported_libraries().items()
        if not known.get(name, {normalize_name(name)}) & required
    }
    assert strays == {}


def test_an_extra_is_declared_as_it_is_explained() -> None:
    for name in EXTRAS:
        with named_case(name):
            declared = [Requirement(text) for text in PROJECT["optional-dependencies"][name]]
            included = {extra for each in declared if each.name == DISTRIBUTION for extra in each.extras}
            assert set(EXTRAS[name].includes) == included
            known = distributions_by_library()
            brought = [known[library] for library in EXTRAS[name].libraries]
            assert all(names & installed_distributions([name]) - installed_distributions() for names in brought)
            required = {normalize_name(each.name) for each in declared if each.name != DISTRIBUTION}
            assert {each for each in required if not any(each in names for names in brought)} == set()


def test_the_package_alone_has_none_of_the_heavy_libraries() -> None:
    heavy = {
        "numpy",
        "onnxruntime",
        "chromadb",
        "cel_expr_python",
        "sqlalchemy",
        "aiohttp",
        "kubernetes",
        "cryptography",
    }
    assert heavy <= absent_libraries()
    assert len(installed_distributions()) < 25


def test_the_package_alone_explains_every_command(folder: Path) -> None:
    (folder / "show_help.py").write_text(SHOW_ALL_HELP)
    shown = run_with_extras([], module="show_help", env={"PYTHONPATH": f"{ROOT}:{folder}", "HOME": str(folder)})
    assert shown.returncode == 0, shown.stderr
    assert "cstp guardrails validate - " in shown.stdout


@pytest.mark.parametrize("transport", [0, 1], ids=["gRPC", "HTTP"])
@pytest.mark.parametrize("command", ["check Rename", "list", "call cstp.getAccess"])
def test_the_package_alone_calls_a_server(server: tuple[str, str], transport: int, command: str) -> None:
    asked = run_with_extras([*command.split(), "--agent", server[transport], "--token", TOKENS["alice"], "--json"])
    assert asked.returncode == 0, asked.stderr
    json.loads(asked.stdout)


@pytest.mark.parametrize("transport", [0, 1], ids=["gRPC", "HTTP"])
def test_the_package_alone_answers_hooks(server: tuple[str, str], transport: int, folder: Path) -> None:
    event = encode(payload("bash", folder))
    answered = run_with_extras(
        ["hook", "claude-code", "--agent", server[transport], "--token", TOKENS["alice"]], input=event
    )
    assert answered.returncode == 0, answered.stderr
    assert "not installed" not in answered.stdout


def test_the_package_alone_asks_several_servers(server: tuple[str, str], folder: Path) -> None:
    (folder / "federated.py").write_text(
        "import sys\n"
        "from cstp_grpc.modules.federation import Agent, FederatedClient\n"
        "agents = [Agent(str(number), url, sys.argv[1]) for number, url in enumerate(sys.argv[2:])]\n"
        "with FederatedClient(agents) as client:\n"
        "    print(client.check_guardrails('Rename a variable').allowed)\n"
    )
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "HOME": str(folder)}
    asked = run_with_extras([TOKENS["alice"], *server], module="federated", env=environment)
    assert (asked.stdout, asked.returncode) == ("True\n", 0), asked.stderr


def test_the_package_alone_works_on_files(folder: Path) -> None:
    exit_codes = {
        "context validate": 0,
        "context resolve .": 2,
        "learn list": 0,
        "config docs": 0,
        "guardrails new rules.yaml": 0,
        "peers": 0,
        "version": 0,
    }
    for (command, expected), (exit_code, _, errors) in zip(
        exit_codes.items(), run_commands(exit_codes, folder), strict=True
    ):
        assert exit_code == expected, (command, errors)


def test_a_command_whose_extra_is_missing_says_how_to_install_it(folder: Path) -> None:
    (folder / "rules.yaml").write_text("")
    extras = {
        "serve --dev": "server",
        "bridge": "server",
        "demo": "server",
        "reindex": "server",
        "migrate": "server",
        "config check": "server",
        "mcp": "mcp",
        "mcp-guard -- true": "mcp",
        "list --local": "local",
        "check Deploy --agent local:data": "local",
        "check Deploy --rules rules.yaml": "guardrails",
        "guardrails validate rules.yaml": "guardrails",
        "guardrails test rules.yaml": "guardrails",
        "import rules.yaml": "import",
        "agent-card http://127.0.0.1:1 --verify --key rules.yaml": "a2a",
    }
    for (command, extra), told in zip(extras.items(), run_commands(extras, folder), strict=True):
        exit_code, output, errors = told
        assert (exit_code, output) == (1, ""), (command, told)
        (line,) = errors.splitlines()
        assert line.startswith("Error: "), command
        assert line.endswith(f"which is not installed: pip install '{DISTRIBUTION}[{extra}]'"), command


def test_a_missing_extra_is_told_as_json() -> None:
    told = run_with_extras(["list", "--local", "--json"])
    error = json.loads(told.stderr)["error"]
    assert error["reason"] == "MISSING_EXTRA"
    assert error["message"].endswith(f"pip install '{DISTRIBUTION}[local]'")


def test_a_hook_whose_extra_is_missing_asks_and_says_why(folder: Path) -> None:
    answered = run_with_extras(["hook", "claude-code", "--local"], input=encode(payload("bash", folder)))
    assert answered.returncode == 0
    answer = json.loads(answered.stdout)["hookSpecificOutput"]
    assert answer["permissionDecision"] == "ask"
    assert f"pip install '{DISTRIBUTION}[local]'" in answer["permissionDecisionReason"]
    assert answered.stderr == ""


@pytest.mark.parametrize(
    ("program", "extra"),
    [
        ("from cstp_grpc.client import CstpClient\nCstpClient('local:data')", "local"),
        ("from cstp_grpc.client import AsyncCstpClient\nAsyncCstpClient('local:data')", "local"),
        ("from cstp_grpc.core.guardrails import Rulebook", "guardrails"),
    ],
    ids=["client", "async client", "rulebook"],
)
def test_a_program_whose_extra_is_missing_gets_an_import_error(program: str, extra: str, folder: Path) -> None:
    (folder / "program.py").write_text(program)
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "HOME": str(folder)}
    failed = run_with_extras([], module="program", env=environment)
    last = failed.stderr.splitlines()[-1]
    assert last.startswith("cstp_grpc.common.extras.MissingExtra: ")
    assert last.endswith(f"pip install '{DISTRIBUTION}[{extra}]'")


def test_the_extra_for_rulebooks_judges_and_tests_them() -> None:
    assert run_with_extras(["guardrails", "new", "rules.yaml"], ["guardrails"]).returncode == 0
    for words in (["guardrails", "validate", "rules.yaml"], ["guardrails", "test", "rules.yaml"]):
        done = run_with_extras(words, ["guardrails"])
        assert done.returncode == 0, done.stderr
    judged = run_with_extras(["check", "Deploy", "--rules", "rules.yaml", "--json"], ["guardrails"])
    assert "allowed" in json.loads(judged.stdout), judged.stderr


def test_the_extra_for_a_folder_serves_a_whole_journal(folder: Path) -> None:
    (folder / "cstp.yaml").write_text("data_dir: data\nembedding: {provider: lexical}\n")
    (folder / "data").mkdir()
    write_journal(folder / "data" / "journal.db")
    (folder / "records.jsonl").write_text('{"title": "Use a queue"}\n')
    for words in (["import", "records.jsonl"], ["announce", "Use a queue"], ["audit"]):
        done = run_with_extras([*words, "--local", "--config", "cstp.yaml", "--json"], ["local"])
        assert done.returncode == 0, done.stderr
        json.loads(done.stdout)


def test_without_chroma_nothing_is_downloaded(folder: Path) -> None:
    (folder / "program.py").write_text(
        "from cstp_grpc.platform.embedding.model_files import download_model\ndownload_model()"
    )
    environment = {"PYTHONPATH": f"{ROOT}:{folder}", "HOME": str(folder)}
    failed = run_with_extras([], ["local"], module="program", env=environment)
    assert failed.stderr.splitlines()[-1] == (
        "cstp_grpc.platform.embedding.model_files.ModelDownloadFailed: "
        f"downloading them needs chromadb: pip install '{DISTRIBUTION}[server]'."
    )


def test_the_extra_for_mcp_serves_it_with_a_server_elsewhere(server: tuple[str, str]) -> None:
    ended = run_with_extras(["mcp", "--agent", server[0], "--token", TOKENS["alice"]], ["mcp"], input="")
    assert ended.returncode == 0, ended.stderr


def test_an_unknown_library_is_of_no_extra() -> None:
    assert missing_extra(ModuleNotFoundError("No module named 'nobody'", name="nobody.knows")) is None
    found = missing_extra(ModuleNotFoundError("No module named 'onnx'", name="onnx.helper"))
    assert isinstance(found, MissingExtra)
    assert found.name == "onnx"


def test_what_is_installed_is_not_missing() -> None:
    for name in EXTRAS:
        require_extra(name)
