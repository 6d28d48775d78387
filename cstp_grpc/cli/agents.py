"""The agents that this one asks: listing them, adding one to the configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from cstp_grpc import config
from cstp_grpc.cli.command import FILE, config_option, prints, state
from cstp_grpc.cli.endpoint import Endpoint
from cstp_grpc.cli.listing import Listing
from cstp_grpc.cli.output import Output, printable
from cstp_grpc.cli.peers import (
    Addition,
    Standing,
    Wanted,
    addition,
    checked_url,
    checked_variable,
    permission_word,
    roll_call,
)
from cstp_grpc.cli.render import entry

UNWELL = 3
"""The exit code where a required peer is not well: what it is asked about is blocked."""
SECONDS = 3.0
"""How long to wait for an agent."""

timeout_option = click.option(
    "--timeout",
    "seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for an answer.",
)


@click.group(invoke_without_command=True)
@timeout_option
@config_option
@prints
def agents(out: Output, seconds: float) -> None:
    """List the agents of federation.peers with their health, version, latency and card.

    All are asked at once. Exit code 0 means that no required one is unwell, 3 that one is: what it would be asked about
    is blocked.

    \b
    Examples:
      cstp agents --config cstp.yaml
      cstp agents --json
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    settings = state().settings()
    found = roll_call(settings, seconds)
    if out.json_wanted:
        out.document({"agents": [as_json(standing) for standing in found]})
    else:
        out.show(lambda console: listing(console, found))
    for standing in found:
        if standing.access and standing.access.agent == settings.agent.name:
            name = standing.configured.name
            out.note(
                f"{name} calls itself {settings.agent.name}, as this agent does: give each an agent.name of its own."
            )
    if any(standing.configured.role == "required" and not standing.healthy for standing in found):
        click.get_current_context().exit(UNWELL)


@agents.command()
@click.argument("url", callback=checked_url)
@click.option("--name", help="What to call it; when absent, what it calls itself.")
@click.option(
    "--role",
    type=click.Choice(["required", "advisory"]),
    default="advisory",
    show_default=True,
    help="Whether nothing is allowed that it does not allow, or it only warns.",
)
@click.option(
    "--token-env",
    metavar="NAME",
    callback=checked_variable,
    help="The environment variable with the token for it; CSTP_TOKEN_ and its name when absent.",
)
@click.option("--category", "categories", multiple=True, help="A category that it speaks for; all when absent.")
@click.option("--ca-file", type=FILE, help="The authorities that certify it, a PEM file.")
@click.option("--card-key", type=FILE, help="The public key that must have signed its card: PEM, or a JSON Web Key.")
@click.option("--dry-run", is_flag=True, help="Print what would be changed, and change nothing.")
@timeout_option
@config_option
@prints
def add(
    out: Output,
    url: str,
    name: str | None,
    role: str,
    token_env: str | None,
    categories: Sequence[str],
    ca_file: Path | None,
    card_key: Path | None,
    dry_run: bool,
    seconds: float,
) -> None:
    """Read the agent card at URL and write the agent into federation.peers of the configuration file.

    URL is that of a card, of a site that has one, or of a bridge; an agent at a grpc:// or grpcs:// URL is asked for
    its name. All else in the file stays as it is, and tokens stay in the environment.

    \b
    Examples:
      cstp agents add https://security.example.com --role required --config cstp.yaml
      cstp agents add https://ops.example.com --card-key ops.pub --config cstp.yaml
      cstp agents add grpcs://qa.example.com:50051 --name qa --category deployment --dry-run
    """
    path = state().config_path
    if path is None:
        raise click.UsageError("Name the configuration file with --config FILE or CSTP_CONFIG.")
    wanted = Wanted(url, name, role, token_env, categories, ca_file, card_key)
    state().endpoint = Endpoint(url, "the command line", wanted.token, wanted.variable, ca_file=ca_file)
    found = addition(path, wanted, seconds)
    if not dry_run:
        config.replace_file(path, found.text)
    is_set = found.variable in config.inherited_environment([found.variable])
    if out.json_wanted:
        out.document(addition_json(found, path, is_set=is_set, written=not dry_run))
    elif dry_run:
        out.verbatim(f"{found.diff}\n")
    else:
        said(out, found, path, is_set=is_set)


def said(out: Output, added: Addition, path: Path, *, is_set: bool) -> None:
    """Print what was done, and what is to be done next."""
    name = added.entry["name"]
    out.line(printable(f"{path} has {name} at {added.entry['url']} now, which is {added.entry['role']}."))
    token = "" if is_set else f"set {added.variable} to the token by which {name} knows this agent, "
    out.line(printable(f"Next: {token}restart the server, and look with `cstp agents` whether {name} answers."))


def addition_json(added: Addition, path: Path, *, is_set: bool, written: bool) -> dict[str, Any]:
    """Return what was done as programs read it."""
    return {
        "peer": added.entry,
        "configuration": str(path),
        "tokenVariable": added.variable,
        "tokenIsSet": is_set,
        "written": written,
        "diff": added.diff,
    }


def listing(console: Console, found: Sequence[Standing]) -> None:
    """Print how peers are."""
    if not found:
        console.print("federation.peers names no agents; `cstp agents add URL` adds one.")
        return
    table = Listing()
    for item in found:
        health = Text("healthy", style="green") if item.healthy else Text(words_of(item), style="red")
        table.add_row(item.configured.role, health, f"{item.latency_ms:.0f} ms", entry(headline(item), details(item)))
    console.print(table)


def words_of(item: Standing) -> str:
    """Return what became of asking a peer."""
    return str(item.status).replace("_", " ")


def headline(item: Standing) -> str:
    """Return who a peer is."""
    name, card = item.configured.name, item.card
    calls_itself = item.access.agent if item.access else card.name if card else name
    itself = f" ({calls_itself})" if calls_itself != name else ""
    version = f" {item.version}" if item.version else ""
    described = f": {card.description}" if card and card.description else ""
    return f"{name}{itself}{version}{described}"


def details(item: Standing) -> list[str]:
    """Return what else is to be said of a peer."""
    configured, failure = item.configured, item.failure
    return [
        configured.url,
        f"for {', '.join(configured.categories)}" if configured.categories else "",
        f"knows us as {item.access.requesting_agent}" if item.access else "",
        f"does not permit us to {' or '.join(item.lacking)}" if item.lacking else "",
        f"{item.card.skills} skills" if item.card else "",
        f"{failure.reason}: {failure.message}" if failure else "",
    ]


def as_json(item: Standing) -> dict[str, Any]:
    """Return how a peer is as programs read it."""
    configured = item.configured
    found: dict[str, Any] = {
        "name": configured.name,
        "url": configured.url,
        "role": configured.role,
        "categories": configured.categories,
        "healthy": item.healthy,
        "status": str(item.status),
        "latencyMs": round(item.latency_ms, 1),
        "version": item.version,
    }
    if item.access:
        found["agent"] = item.access.agent
        found["requestingAgent"] = item.access.requesting_agent
        found["permissions"] = [permission_word(each) for each in item.access.permissions]
    if item.card:
        card = item.card
        found["card"] = {
            "name": card.name,
            "version": card.version,
            "description": card.description,
            "skills": card.skills,
        }
    if item.failure:
        found["error"] = {"reason": item.failure.reason, "message": item.failure.message}
    return found
