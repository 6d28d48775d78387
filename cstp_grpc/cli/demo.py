"""The `cstp demo` command: it runs everything for a few seconds and leaves nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import yaml

from cstp_grpc.cli import advice_output, developer_setup
from cstp_grpc.cli.command_decorators import startup_errors_as_failures
from cstp_grpc.cli.console import Text
from cstp_grpc.cli.output import Output
from cstp_grpc.cli.server_stack import ServerStack
from cstp_grpc.client import CstpClient
from cstp_grpc.common.extras import require_extra
from cstp_grpc.contract.caller import DEVELOPER
from cstp_grpc.contract.json_codec import to_json
from cstp_grpc.platform import config
from cstp_grpc.platform.config import Settings
from cstp_grpc.platform.embedding.model_files import WeightsMissing, find_model_files

DEMO_TOKEN = "a-token-for-the-demonstration"  # noqa: S105 - it opens nothing but the demonstration
DEMO_INTENT = "Deploy the authentication service to production"
DEMO_CONTEXT = "The change is reviewed, all tests pass, and it goes out to everyone at once"
DEMO_METADATA = {"affectsProduction": True, "codeReviewCompleted": True, "ciPassing": True, "rolloutPercent": 100}


@click.command()
def demo_command() -> None:
    """Show a session over both transports. Starts everything, imports example decisions, announces an intent over
    gRPC and over JSON-RPC, and stops.

    \b
    Example:
      cstp demo
    """
    require_extra("server")
    out = Output()
    with tempfile.TemporaryDirectory(prefix="cstp-demo-") as folder, startup_errors_as_failures():
        settings = demo_settings(Path(folder))
        out.line(f"Starting a server with the embedder {settings.embedding.provider} …")
        bridge_file = bridge_config(Path(folder))
        with ServerStack(
            # The bridge is a process of its own, which would read the settings of the developer's server from the
            # environment.
            settings,
            bridge_file,
            bridge=True,
            environment=config.environment_without_settings(),
        ) as stack:
            grpc_target, bridge_url = stack.server.url, str(stack.bridge_url)
            with CstpClient(grpc_target, DEMO_TOKEN) as client:
                out.line(f"{developer_setup.import_examples(client)} example decisions were imported.")
            for target, transport in ((grpc_target, "gRPC"), (bridge_url, "JSON-RPC")):
                out.line(Text(f"\n“{DEMO_INTENT}”, announced over {transport} to {target}:", style="bold"))
                announce_example(out, target)
    out.line("\nStopped. `cstp serve --dev` starts a server that stays.")


def announce_example(out: Output, target: str) -> None:
    with CstpClient(target, DEMO_TOKEN) as client:
        answer = client.announce_intent(
            DEMO_INTENT,
            context=DEMO_CONTEXT,
            category="deployment",
            stakes="high",
            confidence=0.85,
            metadata=DEMO_METADATA,
        )
    out.show(lambda console: advice_output.print_announce_answer(console, to_json(answer)))


def demo_settings(folder: Path) -> Settings:
    """Return the settings of a server on free ports that keeps all data in a folder.

    The environment is not read: it may be that of a server that runs at the same time.
    """
    settings = config.build_settings(
        data_dir=folder, agent={"name": "demo"}, grpc={"port": 0}, embedding={"provider": choose_embedder()}
    )
    return developer_setup.with_agent(settings, DEVELOPER, DEMO_TOKEN)


def choose_embedder() -> str:
    """Return the best embedder that is available without the network."""
    try:
        # A demonstration that downloads 79 MB first demonstrates little.
        find_model_files(None, download=False)
    except WeightsMissing:
        return "lexical"
    return "minilm"


def bridge_config(folder: Path) -> Path:
    """Write the configuration of a bridge on free ports and return its path."""
    path = folder / "bridge.yaml"
    content = {"server": {"port": 0}, "a2a": {"grpc_port": 0}, "logging": {"level": "warning"}}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path
