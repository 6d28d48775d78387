"""config check, config docs and migrate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Invoke

DOCS = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"


def test_the_document_describes_the_settings_as_they_are(invoke: Invoke) -> None:
    document = invoke("config", "docs").stdout
    assert document == DOCS.read_text(encoding="utf-8"), "run `cstp config docs > docs/configuration.md`"


def test_every_setting_is_described_with_its_variable(invoke: Invoke) -> None:
    rows = [line for line in invoke("config", "docs").stdout.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in rows]
    assert len(cells) > 40
    assert [row[0] for row in cells if not row[1] or not row[3]] == []
    described = {row[0]: row for row in cells}
    assert described["`grpc.port`"][1:3] == ["whole number, 0 to 65535", "`50051`"]
    assert described["`a2a.task_days`"][1] == "number above 0, 3650 or less"
    assert described["`grpc.port`"][4] == "`CSTP_GRPC__PORT`"


def test_a_sound_configuration_is_summed_up(invoke: Invoke, home: Path) -> None:
    token = '{name: emerson, token: "${SECRET}"}'
    (home / "cstp.yaml").write_text(f"grpc: {{port: 50061}}\nauth: {{tokens: [{token}]}}\n")
    result = invoke("config", "check", "--config", "cstp.yaml", "--json", env={"SECRET": "a-long-secret"})
    facts = json.loads(result.stdout)
    assert result.exit_code == 0
    assert facts["grpc"] == "127.0.0.1:50061"
    assert facts["agents"] == "emerson"
    assert facts["ruleSet"].startswith("default@")
    assert "a-long-secret" not in result.output


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("grpc: {prot: 1}", "cstp.yaml: grpc.prot: is not a known setting"),
        ("auth: {tokens: [{name: a, token: '${ABSENT}'}]}", "cstp.yaml: not set in the environment: ABSENT"),
        ("cstp: {guardrails: {config_path: nowhere.yaml}}", "nowhere.yaml"),
        (
            "intent_layer: {projects: [{name: shop, root: nowhere}]}",
            "intent_layer.projects.0.root: nowhere is no folder",
        ),
        ("rate_limits: {methods: {cstp.query: 1/minute}}", "rate_limits.methods: there is no method cstp.query"),
        ("liaison: {redaction: [{path: shared_intent}]}", "liaison.redaction.0.path: it is no RFC 9535 JSONPath"),
        (
            "liaison: {pillars: {content: {kind: a2a, url: 'ftp://example.com'}}}",
            "liaison.pillars.content.url: is not of the form https://HOST/PATH",
        ),
        (
            "liaison: {pillars: {content: {kind: grpc, url: 'grpcs://example.com:1', ca_file: absent.pem}}}",
            "liaison.pillars.content.ca_file: absent.pem cannot be read",
        ),
        ("liaison: {heartbeat_seconds: .inf}", "liaison.heartbeat_seconds: "),
        ("liaison: {delivery_hours: 1.0e+300}", "liaison.delivery_hours: "),
        ("grpc: {drain_seconds: .inf}", "grpc.drain_seconds: "),
        ("storage: {url: 'mysql://localhost/cstp'}", "storage.url: must begin with sqlite:/// or postgresql://"),
        ("storage: {url: 'postgresql://localhost:port/cstp'}", "storage.url: is not a database URL"),
        ("[", "cstp.yaml: is not YAML"),
        (
            "auth:\n  enabled: true\ngrpc: {port: 1}\nauth:\n  enabled: false\n",
            "cstp.yaml: line 4: the key `auth` is given twice; the first is on line 1",
        ),
        (
            "auth:\n  tokens:\n    - name: a\n      token: a-long-secret\n      'name': b\n",
            "cstp.yaml: line 5: the key `name` is given twice; the first is on line 3",
        ),
    ],
)
def test_mistakes_are_named(content: str, problem: str, invoke: Invoke, home: Path) -> None:
    (home / "cstp.yaml").write_text(content)
    result = invoke("config", "check", "--config", "cstp.yaml")
    assert result.exit_code == 1
    assert problem in result.stderr


def test_a_line_that_is_not_yaml_is_named_and_not_shown(invoke: Invoke, home: Path) -> None:
    (home / "cstp.yaml").write_text("auth:\n  tokens: [{name: a, token: a-long-secret}}\n")
    result = invoke("config", "check", "--config", "cstp.yaml")
    assert "cstp.yaml: is not YAML at line 2" in result.stderr
    assert "a-long-secret" not in result.stderr


def test_a_configuration_that_lets_nobody_in_is_pointed_out(invoke: Invoke) -> None:
    result = invoke("config", "check")
    assert result.exit_code == 0
    assert "auth.tokens is empty" in result.stderr


def test_liaison_agents_that_nobody_can_be_are_pointed_out(invoke: Invoke, home: Path) -> None:
    tokens = "auth: {tokens: [{name: ada, token: a-long-secret}]}\n"
    (home / "cstp.yaml").write_text(tokens + "liaison: {pillars: {content: {agent: [ada, adda]}, insights: {}}}\n")
    result = invoke("config", "check", "--config", "cstp.yaml")
    assert result.exit_code == 0
    [note] = result.stderr.splitlines()
    assert note.startswith("liaison.pillars.content.agent: no token of auth.tokens belongs to adda,")


def test_migrating_creates_the_tables_and_can_be_repeated(invoke: Invoke, home: Path) -> None:
    assert "it was at nothing" in invoke("migrate").stdout
    assert (home / "var" / "journal.db").exists()
    again = json.loads(invoke("migrate", "--json").stdout)
    assert again["before"] == again["after"]


def test_a_database_that_cannot_be_used_is_named(invoke: Invoke, free_port: int) -> None:
    environment = {"CSTP_STORAGE__URL": f"postgresql://127.0.0.1:{free_port}/x?connect_timeout=2"}
    result = invoke("migrate", env=environment)
    assert result.exit_code == 1
    assert "storage.url" in result.stderr
