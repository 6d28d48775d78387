"""A demonstration from start to end: everything runs for a few seconds and leaves nothing behind."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click
import yaml
from rich.text import Text

from cstp_grpc import config
from cstp_grpc.cli import development, render
from cstp_grpc.cli.failures import startup
from cstp_grpc.cli.output import Output
from cstp_grpc.cli.stack import Stack
from cstp_grpc.client import CstpClient
from cstp_grpc.config import Settings
from cstp_grpc.decisions.embedding.weights import WeightsMissing, resolve_weights

TOKEN = "a-token-for-the-demonstration"  # noqa: S105 - it opens nothing but the demonstration
INTENT = "Deploy the authentication service to production"
CONTEXT = "The change is reviewed, all tests pass, and it goes out to everyone at once"
METADATA = {"affectsProduction": True, "codeReviewCompleted": True, "ciPassing": True, "rolloutPercent": 100}


@click.command()
def demo() -> None:
    """Start everything, import example decisions, announce an intent over gRPC and over JSON-RPC, and stop.

    \b
    Example:
      cstp demo
    """
    out = Output()
    with tempfile.TemporaryDirectory(prefix="cstp-demo-") as folder, startup():
        settings = demo_settings(Path(folder))
        out.line(f"Starting a server with the embedder {settings.embedding.provider} …")
        bridge_file = bridge_config(Path(folder))
        with Stack(settings, bridge_file, bridge=True, environment=config.environment_without_settings()) as stack:
            grpc_target, bridge_url = stack.server.url, str(stack.bridge_url)
            with CstpClient(grpc_target, TOKEN) as client:
                out.line(f"{development.import_examples(client)} example decisions were imported.")
            for target, transport in ((grpc_target, "gRPC"), (bridge_url, "JSON-RPC")):
                out.line(Text(f"\n“{INTENT}”, announced over {transport} to {target}:", style="bold"))
                announce(out, target)
    out.line("\nStopped. `cstp serve --dev` starts a server that stays.")


def announce(out: Output, target: str) -> None:
    """Announce the intent and print the feedback."""
    with CstpClient(target, TOKEN) as client:
        answer = client.announce_intent(
            INTENT, context=CONTEXT, category="deployment", stakes="high", confidence=0.85, metadata=METADATA
        )
    out.show(lambda console: render.announce_answer(console, answer))


def demo_settings(folder: Path) -> Settings:
    """Return the settings of a server on free ports that keeps everything in a folder.

    The environment has no part in them: it may be that of a server which runs beside the demonstration.
    """
    settings = config.build_settings(
        data_dir=folder,
        agent={"name": "demo"},
        grpc={"port": 0},
        index={"mode": "off"},
        embedding={"provider": provider()},
    )
    return development.with_agent(settings, development.DEVELOPER, TOKEN)


def provider() -> str:
    """Return the best embedder that can be had without the network."""
    try:
        resolve_weights(None, download=False)
    except WeightsMissing:
        return "lexical"
    return "minilm"


def bridge_config(folder: Path) -> Path:
    """Write the configuration of a bridge on free ports and return its path."""
    path = folder / "bridge.yaml"
    content = {"server": {"port": 0}, "a2a": {"grpc_port": 0}, "logging": {"level": "warning"}}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path
