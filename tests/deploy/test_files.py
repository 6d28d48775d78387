"""What is in `deploy/`: that it is valid, agrees with the program and with itself, and keeps what it promises."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cstp_grpc.platform.config import describe_plain_listeners, load_settings
from cstp_grpc.platform.config.exposure import ALL_LISTENERS
from cstp_grpc.platform.config.yaml_file import parse_yaml
from tests.deploy.tools import require_tool

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose"
KUBERNETES = DEPLOY / "kubernetes"
UNIT = DEPLOY / "systemd" / "cstp.service"
DOCKERFILE = DEPLOY / "Dockerfile"
VARIABLE = re.compile(r"\$\{(\w+)")
KUBERNETES_VERSION = "1.30"
"""The oldest version that manifests are checked against; gRPC clients and probes need nothing newer."""
CHOOSING_PODS = ("Deployment", "PodDisruptionBudget", "NetworkPolicy", "Service")
MOST_EXPOSED = 20
"""Tenths of the exposure level that `systemd-analyze security` may find: 2.0 of 10, where 9.6 is a unit without any."""


def run(*command: str | Path, **options: Any) -> str:
    """Run a program that must succeed, and return what it prints."""
    finished = subprocess.run(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options
    )
    assert finished.returncode == 0, finished.stdout
    return finished.stdout


def dockerfile_instructions() -> Iterator[tuple[str, str]]:
    """Yield the instructions of the Dockerfile, each with its arguments in one line."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if line and not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        name, _, arguments = line.partition(" ")
        yield name, " ".join(arguments.split())


def instructions(name: str) -> Sequence[str]:
    """Return the arguments of all instructions of a name."""
    return [arguments for each, arguments in dockerfile_instructions() if each == name]


def manifests() -> Mapping[str, dict[str, Any]]:
    """Return the manifests of Kubernetes as they are written, by kind and name."""
    found = [
        document
        for path in sorted(KUBERNETES.glob("*.yaml"))
        if path.name not in ("kustomization.yaml", "cstp.yaml")
        for document in yaml.safe_load_all(path.read_text())
    ]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def test_yaml_is_well_formed() -> None:
    run(require_tool("yamllint"), "--strict", "-c", DEPLOY / ".yamllint.yaml", DEPLOY)


def test_the_dockerfile_keeps_the_rules_of_its_trade() -> None:
    run(require_tool("hadolint"), "--ignore", "DL3042", DOCKERFILE)


def test_the_image_runs_as_a_number_that_is_not_root_and_asks_for_its_health() -> None:
    [user] = instructions("USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user)
    [health] = instructions("HEALTHCHECK")
    command = re.search(r'CMD \["cstp", "(\w+)"\]$', health)
    assert command
    run(sys.executable, "-m", "cstp_grpc", command[1], "--help")
    assert len(instructions("FROM")) == 2, "one stage builds, the other one runs"


@pytest.mark.slow
def test_the_image_is_built_of_what_the_wheel_needs_and_nothing_else(tmp_path: Path) -> None:
    """The steps of the first stage without its installation of other packages: the wheel, of what is copied."""
    included = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split() if line.startswith("!")}
    copied = [each.split() for each in instructions("COPY") if not each.startswith("--from")]
    assert {source for *sources, _ in copied for source in sources} == included
    context = tmp_path / "src"
    for *sources, target in copied:
        for source in sources:
            place = context / target / (source if target == "./" else "")
            place.parent.mkdir(parents=True, exist_ok=True)
            if (ROOT / source).is_dir():
                shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copyfile(ROOT / source, place)
    out = tmp_path / "wheel"
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-w", out, context)
    [wheel] = out.glob("*.whl")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(wheel)}
    assert run(
        sys.executable, "-c", "import cstp_grpc; print(cstp_grpc.__file__)", env=environment, cwd=tmp_path
    ).startswith(str(wheel))


def test_the_compose_file_is_valid() -> None:
    run(require_tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", COMPOSE / "compose.yaml")


def test_compose_asks_for_the_secrets_of_its_example_and_mounts_files_that_exist() -> None:
    text = (COMPOSE / "compose.yaml").read_text()
    example = {line.partition("=")[0] for line in (COMPOSE / ".env.example").read_text().split("\n") if "=" in line}
    assert set(VARIABLE.findall(text)) == example
    wanted = yaml.safe_load(text)
    mounts = [each.split(":")[0] for service in wanted["services"].values() for each in service.get("volumes", [])]
    for mount in mounts:
        assert mount in wanted["volumes"] or (COMPOSE / mount).is_file(), mount
    for name in ("server-1", "server-2"):
        server = wanted["services"][name]
        assert server["read_only"]
        assert server["cap_drop"] == ["ALL"]
        assert "ports" not in server, "the proxy is the only way in"
        assert set(VARIABLE.findall((COMPOSE / "cstp.yaml").read_text())) <= server["environment"].keys()


def test_envoy_finds_the_servers_of_compose_under_the_address_that_they_trust() -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    clusters = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())["static_resources"]["clusters"]
    hosts = {
        endpoint["endpoint"]["address"]["socket_address"]["address"]
        for cluster in clusters
        for endpoint in cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]
    }
    assert hosts == {name for name in services if name.startswith("server-")}
    trusted = parse_yaml(COMPOSE / "cstp.yaml")["grpc"]["trusted_proxies"]
    assert trusted == [services["envoy"]["networks"]["inside"]["ipv4_address"]]


def test_prometheus_finds_servers_and_bridges_in_compose() -> None:
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    [job] = yaml.safe_load((COMPOSE / "prometheus.yaml").read_text())["scrape_configs"]
    metrics = parse_yaml(COMPOSE / "cstp.yaml")["metrics"]
    assert set(job["static_configs"][0]["targets"]) == {
        f"{name}:{metrics[key]}" for name in services if name.startswith("server-") for key in ("port", "bridge_port")
    }
    [secret] = services["prometheus"]["secrets"]
    assert job["authorization"]["credentials_file"] == f"/run/secrets/{secret}"


def test_pods_name_the_ports_of_their_metrics_and_let_prometheus_in() -> None:
    metrics = parse_yaml(KUBERNETES / "cstp.yaml")["metrics"]
    [container] = manifests()["Deployment/cstp"]["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (ports["metrics"], ports["bridge-metrics"]) == (metrics["port"], metrics["bridge_port"])
    allowed = {port["port"] for rule in manifests()["NetworkPolicy/cstp"]["spec"]["ingress"] for port in rule["ports"]}
    assert allowed == set(ports)


def test_envoy_keeps_no_connection_that_a_bridge_closes() -> None:
    clusters = yaml.safe_load((DEPLOY / "envoy" / "envoy.yaml").read_text())["static_resources"]["clusters"]
    [bridges] = [each for each in clusters if each["name"] == "http"]
    [options] = bridges["typed_extension_protocol_options"].values()
    kept = options["common_http_protocol_options"]["idle_timeout"]
    assert int(kept.removesuffix("s")) < load_settings(None, auth={"enabled": False}).server.idle_seconds


def test_the_configuration_of_envoy_is_valid() -> None:
    run(require_tool("envoy"), "--mode", "validate", "-c", DEPLOY / "envoy" / "envoy.yaml")


@pytest.mark.parametrize("path", [COMPOSE / "cstp.yaml", KUBERNETES / "cstp.yaml"], ids=["compose", "kubernetes"])
def test_servers_start_with_the_settings(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLE.findall(path.read_text()):
        monkeypatch.setenv(
            name, "postgresql://db/cstp" if name.endswith("DATABASE_URL") else "redis://a-secret-of-24-characters"
        )
    wanted = load_settings(path)
    assert not list(describe_plain_listeners(wanted, ALL_LISTENERS))
    assert wanted.auth.lets_anyone_in
    assert wanted.rate_limits.redis


def test_the_manifests_are_valid_as_kustomize_renders_them(tmp_path: Path) -> None:
    rendered = tmp_path / "rendered.yaml"
    rendered.write_text(run(require_tool("kustomize"), "build", KUBERNETES))
    run(require_tool("kubernetes-validate"), "--strict", "-k", KUBERNETES_VERSION, rendered)
    found = list(yaml.safe_load_all(rendered.read_text()))
    [deployment] = [each for each in found if each["kind"] == "Deployment"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    chosen = [each["spec"] for each in found if each["kind"] in CHOOSING_PODS]
    assert len(chosen) >= len(CHOOSING_PODS)
    for spec in chosen:
        selector = spec.get("podSelector") or spec["selector"]
        selector = selector.get("matchLabels", selector)
        assert selector
        assert selector.items() <= labels.items()


def test_pods_may_do_nothing_that_a_server_does_not_need() -> None:
    pod = manifests()["Deployment/cstp"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    [user] = instructions("USER")
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == user
    assert pod["securityContext"]["runAsNonRoot"]
    assert not pod["automountServiceAccountToken"]


def test_files_that_the_settings_name_are_mounted_in_pods() -> None:
    named = set(re.findall(r"/etc/cstp/[\w./-]+", (KUBERNETES / "cstp.yaml").read_text()))
    pod = manifests()["Deployment/cstp"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    folders = {Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    assert {Path(path).parent for path in named} <= folders


def test_the_trail_is_signed_by_a_key_that_outlives_pods() -> None:
    signing_key = Path(parse_yaml(KUBERNETES / "cstp.yaml")["audit"]["signing_key_file"])
    pod = manifests()["Deployment/cstp"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    [mount] = [each for each in container["volumeMounts"] if Path(each["mountPath"]) == signing_key.parent]
    [volume] = [each for each in pod["volumes"] if each["name"] == mount["name"]]
    assert "secret" in volume
    assert f"--from-file={signing_key.name}" in (ROOT / "docs" / "deployment" / "containers.md").read_text()


def test_a_pod_has_the_time_to_stop_that_a_server_takes() -> None:
    from cstp_grpc.cli.serve import STOP_SECONDS

    pod = manifests()["Deployment/cstp"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    pause = int(container["lifecycle"]["preStop"]["exec"]["command"][-1])
    drain = load_settings(None, auth={"enabled": False}).grpc.drain_seconds
    assert pod["terminationGracePeriodSeconds"] > pause + drain + STOP_SECONDS
    services = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["services"]
    assert int(services["server-1"]["stop_grace_period"].removesuffix("s")) > drain + STOP_SECONDS
    stop = re.search(r"^TimeoutStopSec=(\d+)$", UNIT.read_text(), re.MULTILINE)
    assert stop
    assert int(stop[1]) > drain + STOP_SECONDS


def test_no_pod_is_taken_away_before_another_one_serves() -> None:
    found = manifests()
    deployment = found["Deployment/cstp"]["spec"]
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert found["PodDisruptionBudget/cstp"]["spec"]["minAvailable"] < deployment["replicas"]


def test_the_unit_is_valid_and_confines_the_server(tmp_path: Path) -> None:
    analyze = require_tool("systemd-analyze")
    # Programs that a unit names must exist.
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/cstp/bin/cstp", "/bin/true"))
    assert run(analyze, "verify", unit) == ""
    run(analyze, "security", "--offline=true", f"--threshold={MOST_EXPOSED}", unit)
