"""config check, config docs and migrate."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path
from cstp_grpc.platform.config import Settings, describe_plain_listeners, load_settings
from cstp_grpc.platform.config.exposure import ALL_LISTENERS
from scripts.config_docs import split_pages
from tests.cli.conftest import Invoke
from tests.named_case import named_case

DOCS = Path(__file__).resolve().parents[2] / "docs" / "configuration"


def test_the_pages_describe_the_settings_as_they_are(invoke: Invoke) -> None:
    pages = split_pages(invoke("config", "docs").stdout)
    assert pages == {page.name: page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")}, "run `make docs`"


def test_every_setting_is_described_with_its_variable(invoke: Invoke) -> None:
    described = dict(
        re.findall(
            r"^### `([\w.\[\]]+)`\n\n(.*?)\n(?=\n#|\Z)", invoke("config", "docs").stdout, re.MULTILINE | re.DOTALL
        )
    )
    assert {key.partition(".")[0].partition("[")[0] for key in described} == {*Settings.model_fields}
    assert len(described) > 200
    assert [key for key, text in described.items() if not re.search(r"[\w.\]]\n\nType: ", text)] == []
    assert described["grpc.port"].endswith(
        "\n\nType: whole number, 0 to 65535. Default: `50051`. Environment: `CSTP_GRPC__PORT`."
    )
    assert "\n\nType: number above 0, 3650 or less. " in described["a2a.task_days"]


def test_a_sound_configuration_is_summed_up(invoke: Invoke, home: Path) -> None:
    token = '{name: emerson, token: "${SECRET}"}'
    (home / "cstp.yaml").write_text(f"grpc: {{port: 50061}}\nauth: {{tokens: [{token}]}}\n")
    result = invoke("config", "check", "--config", "cstp.yaml", "--json", env={"SECRET": "a-long-secret"})
    facts = json.loads(result.stdout)
    assert result.exit_code == 0
    assert facts["grpc"] == "127.0.0.1:50061"
    assert facts["agents"] == "emerson"
    assert facts["ruleSet"].startswith("agent-safety@")
    assert "a-long-secret" not in result.output


def test_mistakes_are_named(invoke: Invoke, home: Path) -> None:
    for content, problem in [
        ("grpc: {prot: 1}", "cstp.yaml: grpc.prot: is not a known setting; did you mean `port`?"),
        ("gprc: {port: 1}", "cstp.yaml: gprc: is not a known setting; did you mean `grpc`?"),
        ("grpc: {anything: 1}", "cstp.yaml: grpc.anything: is not a known setting\n"),
        ("index: {mode: 'off'}", "cstp.yaml: index: is replaced by `search.engine`\n"),
        (
            "server: {tls: {certificat: a}}",
            "server.tls.certificat: is not a known setting; did you mean `certificate`?",
        ),
        (
            "auth: {tokens: [{name: a, token: a-long-secret, permission: [query]}]}",
            "auth.tokens.0.permission: is not a known setting; did you mean `permissions`?",
        ),
        (
            "liaison: {pillars: {content: {knid: grpc}}}",
            "liaison.pillars.content.knid: is not a known setting; did you mean `kind`?",
        ),
        ("auth: {tokens: [{name: a, token: '${ABSENT}'}]}", "cstp.yaml: not set in the environment: ABSENT"),
        ("cstp: {guardrails: {config_path: nowhere.yaml}}", "nowhere.yaml"),
        (
            "intent_layer: {projects: [{name: shop, root: nowhere}]}",
            "intent_layer.projects.0.root: nowhere is no folder",
        ),
        ("rate_limits: {methods: {cstp.query: 1/minute}}", "rate_limits.methods: there is no method cstp.query"),
        ("liaison: {redaction: [{path: shared_intent}]}", "liaison.redaction.0.path: it is not an RFC 9535 JSONPath"),
        (
            "liaison: {pillars: {content: {kind: a2a, url: 'ftp://example.com'}}}",
            "liaison.pillars.content.url: is not of the form https://HOST/PATH",
        ),
        (
            "liaison: {pillars: {content: {kind: grpc, url: 'grpcs://example.com:1', ca_file: absent.pem}}}",
            "liaison.pillars.content.ca_file: absent.pem cannot be read",
        ),
        (
            "metrics: {port: 9464, host: 0.0.0.0}",
            "metrics: host is 0.0.0.0, where others reach it, so token must be given",
        ),
        (
            "metrics: {bridge_port: 9465, host: 0.0.0.0, token: too-short}",
            "metrics: host is 0.0.0.0, where others reach it, so token must have at least 24 characters",
        ),
        ("metrics: {port: 9464, tls: {certificate: absent.pem, key: absent.pem}}", "metrics.tls"),
        ("metrics: {agent_classes: {'CI agents': ['ci-*']}}", "metrics.agent_classes.CI agents"),
        (
            "otlp: {endpoint: 'https://collector.example.com:4317', ca_file: absent.pem}",
            "otlp.ca_file: absent.pem cannot be read",
        ),
        ("otlp: {endpoint: 'collector:4317'}", "otlp.endpoint: "),
        ("logging: {calls: yaml}", "logging.calls: "),
        ("liaison: {heartbeat_seconds: .inf}", "liaison.heartbeat_seconds: "),
        ("liaison: {delivery_hours: 1.0e+300}", "liaison.delivery_hours: "),
        ("grpc: {drain_seconds: .inf}", "grpc.drain_seconds: "),
        ("storage: {url: 'mysql://localhost/cstp'}", "storage.url: must begin with sqlite:/// or postgresql://"),
        ("storage: {url: 'postgresql://localhost:port/cstp'}", "storage.url: is not a database URL"),
        (
            "search: {engine: postgresql, url: 'postgresql://localhost:port/cstp'}",
            "search.url: is not a database URL",
        ),
        *(
            (f"search: {{engine: chroma, url: '{url}'}}", "search.url: must be like http://HOST:PORT")
            for url in ("", "localhost:8000", "postgresql://localhost/cstp", "http://localhost:port")
        ),
        ("[", "cstp.yaml: is not YAML"),
        (
            "auth:\n  enabled: true\ngrpc: {port: 1}\nauth:\n  enabled: false\n",
            "cstp.yaml: line 4: the key `auth` is given twice; the first is on line 1",
        ),
        (
            "auth:\n  tokens:\n    - name: a\n      token: a-long-secret\n      'name': b\n",
            "cstp.yaml: line 5: the key `name` is given twice; the first is on line 3",
        ),
    ]:
        with named_case(content, problem):
            (home / "cstp.yaml").write_text(content)
            result = invoke("config", "check", "--config", "cstp.yaml")
            assert result.exit_code == 1
            assert problem in result.stderr


@pytest.mark.parametrize(
    ("variable", "problem"),
    [
        ("CSTP_STORAG__URL", "CSTP_STORAG__URL is not a known setting; did you mean CSTP_STORAGE__URL?"),
        ("cstp_storag__url", "cstp_storag__url is not a known setting; did you mean CSTP_STORAGE__URL?"),
        ("CSTP_XYZZY__PORT", "CSTP_XYZZY__PORT is not a known setting\n"),
        ("CSTP_INDEX__MODE", "CSTP_INDEX__MODE is replaced by `search.engine`\n"),
        ("CSTP_STORAGE__ULR", "storage.ulr: is not a known setting; did you mean `url`?"),
    ],
)
def test_misspelt_variables_are_named(variable: str, problem: str, invoke: Invoke) -> None:
    result = invoke("config", "check", env={variable: "sqlite:///x.db"})
    assert result.exit_code == 1
    assert problem in result.stderr


def test_variables_of_others_are_no_settings(invoke: Invoke) -> None:
    assert invoke("config", "check", env={"CSTP_TOKEN_EMERSON": "a-long-secret", "CSTP_BY": "x"}).exit_code == 0


def test_mistakes_in_what_is_left_out_do_not_matter(invoke: Invoke, home: Path) -> None:
    (home / "cstp.yaml").write_text(
        "intent_layer: {enabled: false, projects: [{name: shop, root: nowhere}]}\n"
        "liaison: {enabled: false, pillars: {content: {agent: adda}}, redaction: [{path: shared_intent}]}\n"
        "a2a: {enabled: false}\n"
        "auth: {tokens: [{name: ada, token: a-long-secret, permissions: [announce, record, admin]}]}\n"
    )
    result = invoke("config", "check", "--config", "cstp.yaml")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "a2a            left out" in result.stdout


@pytest.mark.parametrize("word", ["off", "Off", "OFF", "'off'"])
def test_words_that_older_yaml_takes_for_truth_values_are_words(word: str, home: Path) -> None:
    (home / "cstp.yaml").write_text(f"logging: {{calls: {word.lower()}}}\nagent: {{name: {word}, description: no}}\n")
    settings = load_settings(Path("cstp.yaml"))
    assert settings.logging.calls == "off"
    assert settings.agent.name == word.strip("'")
    assert settings.agent.description == "no"


@pytest.mark.parametrize(
    ("written", "meant"), [("off", False), ("no", False), ("false", False), ("on", True), ("yes", True), ("True", True)]
)
def test_truth_values_may_be_written_in_every_way(written: str, meant: bool, home: Path) -> None:
    (home / "cstp.yaml").write_text(f"rate_limits: {{enabled: {written}}}\n")
    assert load_settings(Path("cstp.yaml")).rate_limits.enabled is meant


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
    assert "Warning: liaison.pillars.content.agent: no token of auth.tokens belongs to adda," in result.stderr
    assert "insights" not in result.stderr


DESIGN = """\
server:
  host: "0.0.0.0"
  port: 8100
  cors_origins: ["*"]

auth:
  enabled: true
  tokens:
    - name: "emerson"
      token: "${CSTP_TOKEN_EMERSON}"
    - name: "claude-ops"
      token: "${CSTP_TOKEN_CLAUDE}"

cstp:
  query:
    max_results: 50
    min_score: 0.3
  guardrails:
    config_path: "guardrails/default.yaml"
  intent:
    store_received: true
    auto_respond: true
"""
"""The configuration of the protocol's design, section 6.1."""
DESIGN_TOKENS = {"CSTP_TOKEN_EMERSON": "emerson-secret-token", "CSTP_TOKEN_CLAUDE": "claude-secret-token"}


@pytest.fixture
def elsewhere(home: Path) -> Path:
    """A folder that is not the working directory, with the design's configuration."""
    folder = home / "etc"
    folder.mkdir()
    (folder / "config.yaml").write_text(DESIGN)
    return folder


def test_the_configuration_of_the_design_works_as_it_stands(elsewhere: Path, invoke: Invoke) -> None:
    result = invoke("config", "check", "--insecure", "--config", "etc/config.yaml", "--json", env=DESIGN_TOKENS)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["agents"] == "claude-ops, emerson"
    assert facts["rulebook"] == "the packaged standard rules"
    assert facts["ruleSet"].startswith("agent-safety@")


def test_the_document_adds_two_lines_to_the_design_so_that_tokens_announce(home: Path, invoke: Invoke) -> None:
    block = next(
        each for each in re.findall(r"```yaml\n(.*?)```", (DOCS / "README.md").read_text(), re.DOTALL) if "8100" in each
    )
    added = [line for line in block.splitlines() if "permissions" in line]
    assert len(added) == 2
    assert [line for line in block.splitlines() if line not in added] == DESIGN.splitlines()
    (home / "cstp.yaml").write_text(block)
    result = invoke("config", "check", "--insecure", "--config", "cstp.yaml", env=DESIGN_TOKENS)
    assert (result.exit_code, "announce" in result.stderr) == (0, False)


def test_a_rulebook_beside_the_configuration_is_the_one_it_names(home: Path, elsewhere: Path, invoke: Invoke) -> None:
    (elsewhere / "guardrails").mkdir()
    (elsewhere / "guardrails" / "default.yaml").write_text(
        packaged_rulebook_path("default").read_text().replace("default", "ours", 1)
    )
    result = invoke("config", "check", "--insecure", "--config", "etc/config.yaml", "--json", env=DESIGN_TOKENS)
    assert json.loads(result.stdout)["rulebook"] == "etc/guardrails/default.yaml"


def test_rulebooks_without_the_one_that_is_named_stop_the_start(elsewhere: Path, invoke: Invoke) -> None:
    (elsewhere / "guardrails").mkdir()
    (elsewhere / "guardrails" / "production.yaml").write_text("")
    result = invoke("serve", "--insecure", "--config", "etc/config.yaml", env=DESIGN_TOKENS)
    assert result.exit_code == 1
    assert "etc/guardrails/default.yaml" in result.stderr


@pytest.mark.parametrize("written", ["guardrails/production.yaml", "{folder}/guardrails/default.yaml"])
def test_another_rulebook_must_exist(written: str, elsewhere: Path, invoke: Invoke) -> None:
    path = elsewhere / "config.yaml"
    path.write_text(DESIGN.replace("guardrails/default.yaml", written.format(folder=elsewhere)))
    result = invoke("config", "check", "--config", path, env=DESIGN_TOKENS)
    assert result.exit_code == 1
    assert "cannot be read" in result.stderr


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ("server: {host: 0.0.0.0}", "server.host"),
        ("a2a: {grpc_host: 192.0.2.1}", "a2a.grpc_host"),
        ("grpc: {host: '::'}", "grpc.host"),
        ("metrics: {host: 0.0.0.0, port: 9464, token: a-secret-of-24-characters}", "metrics.host"),
        ("metrics: {host: 0.0.0.0, bridge_port: 9465, token: a-secret-of-24-characters}", "metrics.host"),
        ("serve: {behind_proxy: true}\ngrpc: {host: 0.0.0.0}", "grpc.host"),
        ("serve: {behind_proxy: true}\ngrpc: {host: 0.0.0.0}\nserver: {trusted_proxies: [10.0.0.1]}", "grpc.host"),
    ],
)
def test_a_server_without_tls_is_not_started_where_others_reach_it(
    home: Path, invoke: Invoke, settings: str, key: str
) -> None:
    tokens = "auth: {tokens: [{name: a, token: a-long-secret}]}"
    (home / "cstp.yaml").write_text(f"{tokens}\n{settings}\n")
    for command in (("serve",), ("config", "check")):
        result = invoke(*command, "--config", "cstp.yaml")
        assert result.exit_code == 1
        assert f"{key}: others than this machine reach" in result.stderr
        assert "--insecure" in result.stderr
    assert not (home / "var").exists()
    assert invoke("config", "check", "--insecure", "--config", "cstp.yaml").exit_code == 0


@pytest.mark.parametrize("section", ["grpc", "server"])
def test_proxies_that_are_anyone_are_refused(home: Path, invoke: Invoke, section: str) -> None:
    (home / "cstp.yaml").write_text(f"{section}: {{trusted_proxies: ['::/0']}}\n")
    result = invoke("config", "check", "--config", "cstp.yaml")
    assert result.exit_code == 1
    assert f"{section}.trusted_proxies: ::/0 would believe anyone on the internet; write the addresses" in result.stderr


@pytest.mark.parametrize(
    "settings",
    [
        "serve: {insecure: true}",
        "serve: {behind_proxy: true}\nmetrics: {host: 0.0.0.0, port: 9464, token: a-secret-of-24-characters}",
        "serve: {behind_proxy: true}\nserver: {host: 0.0.0.0, trusted_proxies: [10.0.0.1]}",
        "server: {host: 127.0.0.1}\ngrpc: {host: localhost}",
        "a2a: {enabled: false, grpc_host: 0.0.0.0}",
        "server: {host: 0.0.0.0, tls: {certificate: c.pem, key: k.pem}}\na2a: {grpc_host: 0.0.0.0}",
    ],
)
def test_what_is_meant_is_not_pointed_out(home: Path, settings: str) -> None:
    (home / "cstp.yaml").write_text(f"{settings}\n")
    assert list(describe_plain_listeners(load_settings(home / "cstp.yaml"), ALL_LISTENERS)) == []


def test_what_no_token_may_do_is_pointed_out(elsewhere: Path, invoke: Invoke) -> None:
    arguments = ("config", "check", "--insecure", "--config", "etc/config.yaml")
    told = "auth.tokens: no token may announce, record or administer, which takes announce, record, admin"
    result = invoke(*arguments, env=DESIGN_TOKENS)
    assert result.exit_code == 0
    assert f"Warning: {told}" in result.stderr
    result = invoke(*arguments, "--json", env=DESIGN_TOKENS)
    (warning,) = json.loads(result.stdout)["warnings"]
    assert warning.startswith(told)
    assert result.stderr == ""


def test_permissions_that_are_spread_over_tokens_are_enough(home: Path, invoke: Invoke) -> None:
    tokens = "{name: a, token: a-long-secret, permissions: [announce, record]}"
    more = "{name: b, token: another-secret, permissions: [admin]}"
    (home / "cstp.yaml").write_text(f"auth: {{tokens: [{tokens}, {more}]}}\n")
    assert json.loads(invoke("config", "check", "--config", "cstp.yaml", "--json").stdout)["warnings"] == []
    (home / "cstp.yaml").write_text(f"auth: {{tokens: [{tokens}]}}\naudit: {{enabled: false}}\n")
    warnings = json.loads(invoke("config", "check", "--config", "cstp.yaml", "--json").stdout)["warnings"]
    assert [warning.partition(",")[0] for warning in warnings] == [
        "auth.tokens: no token may administer",
        "audit.enabled: is false",
    ]


def test_every_path_in_a_file_is_relative_to_its_folder(home: Path, invoke: Invoke) -> None:
    (home / "etc").mkdir()
    (home / "etc" / "cstp.yaml").write_text(ALL_PATHS)
    settings = load_settings(Path("etc/cstp.yaml"))
    found = [getter(settings) for getter in PATHS]
    assert found == [Path("etc/x")] * len(PATHS)
    assert settings.storage_url == "sqlite:///etc/x.db"
    # A setting that takes a path and is not tried here would go unnoticed.
    rows = [line for line in invoke("config", "docs").stdout.splitlines() if re.match(r"Type: path\b", line)]
    assert len(rows) == len(PATHS)


def test_paths_elsewhere_are_relative_to_the_working_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "etc").mkdir()
    (home / "etc" / "cstp.yaml").write_text("embedding: {model_path: /models}\n")
    assert load_settings(Path("etc/cstp.yaml")).data_dir == Path("var")
    assert load_settings(Path("etc/cstp.yaml")).embedding.model_path == Path("/models")
    (home / "etc" / "cstp.yaml").write_text("data_dir: data\nstorage: {url: 'sqlite:////data/x.db'}\n")
    monkeypatch.setenv("CSTP_DATA_DIR", "mine")
    settings = load_settings(Path("etc/cstp.yaml"))
    assert settings.data_dir == Path("mine")
    assert settings.storage_url == "sqlite:////data/x.db"


ALL_PATHS = """\
data_dir: x
agent: {card_signing: {key_file: x}}
server:
  public_url: "https://example.com"
  grpc_ca_file: x
  grpc_client_certificate: x
  tls: {certificate: x, key: x, client_ca: x}
grpc: {tls: {certificate: x, key: x, client_ca: x}}
console: {tls: {certificate: x, key: x, client_ca: x}}
auth: {jwt: [{issuer: i, audience: [a], jwks_url: "https://example.com", ca_file: x}]}
cstp: {guardrails: {config_path: x}}
storage: {url: "sqlite:///x.db"}
embedding: {model_path: x}
audit: {signing_key_file: x}
metrics: {tls: {certificate: x, key: x, client_ca: x}}
otlp: {ca_file: x}
intent_layer: {projects: [{name: shop, root: x}]}
liaison: {pillars: {content: {kind: grpc, url: "grpcs://example.com:1", ca_file: x}}}
federation: {peers: [{name: b, url: "grpcs://example.com:1", ca_file: x, card_key: x}]}
"""
PATHS: list[Callable[[Settings], object]] = [
    lambda settings: settings.data_dir,
    lambda settings: settings.agent.card_signing and settings.agent.card_signing.key_file,
    lambda settings: settings.server.grpc_ca_file,
    lambda settings: settings.server.grpc_client_certificate,
    lambda settings: settings.server.tls and settings.server.tls.certificate,
    lambda settings: settings.server.tls and settings.server.tls.key,
    lambda settings: settings.server.tls and settings.server.tls.client_ca,
    lambda settings: settings.grpc.tls and settings.grpc.tls.certificate,
    lambda settings: settings.grpc.tls and settings.grpc.tls.key,
    lambda settings: settings.grpc.tls and settings.grpc.tls.client_ca,
    lambda settings: settings.console.tls and settings.console.tls.certificate,
    lambda settings: settings.console.tls and settings.console.tls.key,
    lambda settings: settings.console.tls and settings.console.tls.client_ca,
    lambda settings: settings.auth.jwt[0].ca_file,
    lambda settings: settings.cstp.guardrails.config_path,
    lambda settings: settings.embedding.model_path,
    lambda settings: settings.audit.signing_key_file,
    lambda settings: settings.metrics.tls and settings.metrics.tls.certificate,
    lambda settings: settings.metrics.tls and settings.metrics.tls.key,
    lambda settings: settings.metrics.tls and settings.metrics.tls.client_ca,
    lambda settings: settings.otlp.ca_file,
    lambda settings: settings.intent_layer.projects[0].root,
    lambda settings: settings.liaison.pillars["content"].ca_file,
    lambda settings: settings.federation.peers[0].ca_file,
    lambda settings: settings.federation.peers[0].card_key,
]
"""Every setting that is a path, as ALL_PATHS gives it."""


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
