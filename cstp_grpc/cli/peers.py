"""The `cstp peers` commands: list peers with their health, and add one to the configuration."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import click

from cstp_grpc.cli import status_output
from cstp_grpc.cli.agent_card import CARD_PATH, JSONRPC_PATH, card_url, read_keys
from cstp_grpc.cli.answer_fields import entry_text
from cstp_grpc.cli.command_decorators import FILE, config_option, current_state, seconds_option, with_output
from cstp_grpc.cli.console import Console, Text, TextTable
from cstp_grpc.cli.output import Output, json_members, to_printable
from cstp_grpc.cli.rpc_commands import calls_rpc
from cstp_grpc.cli.server_choice import Endpoint, read_ca_file
from cstp_grpc.client import CstpClient
from cstp_grpc.client.targets import grpc_address, target_scheme
from cstp_grpc.common.lazy_dataclass import dataclass, field
from cstp_grpc.contract.enums import PeerStatus
from cstp_grpc.contract.errors import AuthenticationRequired, CstpError, InvalidArgument
from cstp_grpc.contract.methods import contract_methods
from cstp_grpc.gen.cstp.v1 import access_pb2, options_pb2, status_pb2
from cstp_grpc.modules.federation.agent_card import PeerCard, read_card
from cstp_grpc.modules.federation.fan_out import PendingReplies
from cstp_grpc.modules.federation.peer import open_peers
from cstp_grpc.modules.federation.peer_responses import AccessReply, read_access_reply
from cstp_grpc.platform import config
from cstp_grpc.platform.config import ConfigError, PeerSettings, Settings

VARIABLE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TOKEN_PLACEHOLDER: Final = "not-set-yet"  # noqa: S105
"""The value that stands in for an unset token variable when the file is validated."""


@dataclass(frozen=True, slots=True)
class PeerHealth:
    """The health of a peer: its answer, or why it did not answer, and its card if it has one."""

    configured: PeerSettings
    status: PeerStatus
    latency_ms: float
    reply: AccessReply
    card: PeerCard | None

    @property
    def access(self) -> access_pb2.GetAccessResponse | None:
        return self.reply.access

    @property
    def healthy(self) -> bool:
        return self.status is PeerStatus.ANSWERED

    @property
    def version(self) -> str:
        return self.access.version if self.access else self.card.version if self.card else ""

    @property
    def missing_permissions(self) -> list[str]:
        """The permissions that the peer does not give this agent."""
        return [permission_word(each) for each in self.reply.missing_permissions]


def probe_peers(settings: Settings, seconds: float) -> list[PeerHealth]:
    """Return the health of the configured peers, asked concurrently, in their order. Raises ConfigError."""
    configured = settings.federation.peers
    if not configured:
        return []
    with ExitStack() as opened:
        peers = open_peers(opened, settings.federation)
        pool = opened.enter_context(ThreadPoolExecutor(len(configured)))
        # Beside the calls below, so that both together take no longer than the slower one.
        cards = [pool.submit(fetch_peer_card, peer, seconds) for peer in configured]
        method, request = contract_methods()["cstp.getAccess"], access_pb2.GetAccessRequest()
        by_name = {reply.agent: reply for reply in PendingReplies(peers, method, request, seconds).replies()}
        replies_of_peers = [by_name[peer.name] for peer in configured]
        return [
            PeerHealth(peer, reply.status, reply.latency_ms, read_access_reply(reply), card.result())
            for peer, reply, card in zip(configured, replies_of_peers, cards, strict=True)
        ]


def fetch_peer_card(peer: PeerSettings, seconds: float) -> PeerCard | None:
    if target_scheme(peer.url) not in {"http", "https"}:
        return None
    token = peer.token.get_secret_value() if peer.token else None
    roots = None if peer.ca_file is None else read_ca_file(peer.ca_file)
    keys = [] if peer.card_key is None else read_keys(peer.card_key)
    try:
        return read_card(card_url(peer.url), token, roots, min(seconds, peer.timeout_seconds), card_keys=keys)
    except CstpError:
        return None


def permission_word(permission: options_pb2.Permission.ValueType) -> str:
    return options_pb2.Permission.Name(permission).removeprefix("PERMISSION_").lower()


@dataclass(frozen=True, slots=True)
class NewPeer:
    """A peer to be added, as the command line describes it."""

    url: str
    name: str | None
    role: str
    token_env: str | None
    categories: Sequence[str]
    ca_file: Path | None
    card_key: Path | None

    @property
    def variable(self) -> str:
        """The environment variable of its token, empty if neither it nor a name is given."""
        return self.token_env or (token_variable(self.name) if self.name else "")

    @property
    def token(self) -> str | None:
        return config.inherited_environment([self.variable]).get(self.variable)


@dataclass(frozen=True, slots=True)
class PeerConfigChange:
    """A peer to be added, and the text of the configuration before and after."""

    entry: dict[str, Any]
    variable: str
    text: str = field(repr=False)
    before: str = field(repr=False)

    @property
    def diff(self) -> str:
        """The changed lines without context, since there may be tokens around them."""
        lines = difflib.unified_diff(self.before.splitlines(), self.text.splitlines(), n=0, lineterm="")
        # Without the first two lines, which name the files.
        return "\n".join(list(lines)[2:])


def plan_peer(path: Path, new_peer: NewPeer, seconds: float) -> PeerConfigChange:
    """Return the change that adds a peer to a configuration file, validated as a whole.

    Raises ConfigError, click.UsageError and the errors of calling the peer.
    """
    before = config.read_text(path)
    present = config.validate_text(before, path, {}).federation.peers
    # Before the agent is called, and again below with the name and the URL that its card gives.
    check_new(new_peer.url, new_peer.name, present)
    name, url = discover_peer(new_peer, seconds)
    check_new(url, name, present)
    variable = new_peer.token_env or token_variable(name)
    entry: dict[str, Any] = {"name": name, "url": url, "token": f"${{{variable}}}", "role": new_peer.role}
    if new_peer.categories:
        entry["categories"] = list(new_peer.categories)
    if new_peer.ca_file:
        entry["ca_file"] = str(path_for_config_file(new_peer.ca_file, path.parent))
    if new_peer.card_key:
        entry["card_key"] = str(path_for_config_file(new_peer.card_key, path.parent))
    text = config.add_peer(before, path, entry)
    settings = config.validate_text(text, path, {variable: TOKEN_PLACEHOLDER})
    if name not in {peer.name for peer in settings.federation.peers}:
        raise ConfigError(f"{path}: the environment sets federation.peers, so that the file's do not count")
    # As a server does at its start: a change that it would refuse is not written.
    with ExitStack() as opened:
        open_peers(opened, settings.federation)
    return PeerConfigChange(entry, variable, text, before)


def path_for_config_file(path: Path, folder: Path) -> Path:
    """Return a path as a configuration file must write it: absolute, if a relative one would differ."""
    return path if path.is_absolute() or folder.absolute() == Path.cwd() else path.absolute()


def discover_peer(new_peer: NewPeer, seconds: float) -> tuple[str, str]:
    """Return the name of an agent and the URL to ask it by, from its card or over gRPC.

    Raises CstpError, click.UsageError and ConfigError.
    """
    roots = None if new_peer.ca_file is None else read_ca_file(new_peer.ca_file)
    keys = [] if new_peer.card_key is None else read_keys(new_peer.card_key)
    if target_scheme(new_peer.url) in {"http", "https"}:
        url = card_url(new_peer.url)
        stated_name = read_card(url, new_peer.token, roots, seconds, card_keys=keys).name
    elif keys:
        raise click.UsageError(f"{new_peer.url} has no agent card: --card-key needs the URL of one.")
    else:
        url = f"{target_scheme(new_peer.url)}://{grpc_address(new_peer.url)}"
        stated_name = fetch_name_over_grpc(new_peer, url, roots, seconds)
    name = new_peer.name or re.sub(r"[^A-Za-z0-9._-]+", "-", stated_name).strip("-._")[:100]
    if not name:
        raise click.UsageError(f"{new_peer.url} does not state its name; set it with --name.")
    return name, url


def fetch_name_over_grpc(new_peer: NewPeer, url: str, roots: bytes | None, seconds: float) -> str:
    """Return the name that an agent gives itself, or empty if it requires a token for that."""
    with CstpClient(url, new_peer.token, timeout=seconds, root_certificates=roots) as client:
        try:
            return client.get_access().agent
        except AuthenticationRequired:
            if new_peer.token:
                raise
            if new_peer.name:
                return ""
            raise click.UsageError(
                f"{url} requires a token to state its name: set the name with --name, or the variable of the token"
                " with --token-env."
            ) from None


def check_new(url: str, name: str | None, present: Sequence[PeerSettings]) -> None:
    for peer in present:
        if peer.name == name:
            raise click.ClickException(
                f"federation.peers has {name} already, at {peer.url}. Name the new one differently with --name."
            )
        if normalize_peer_url(peer.url) == normalize_peer_url(url):
            raise click.ClickException(f"federation.peers has {url} already, as {peer.name}.")


def normalize_peer_url(url: str) -> str:
    """Return a canonical form of a peer's URL, so that two spellings of one address compare equal."""
    scheme, found, rest = url.partition("://")
    address = f"grpc://{url}" if not found else f"{scheme.lower()}://{rest.lower()}"
    for suffix in (CARD_PATH, "/", JSONRPC_PATH):
        # In the order of the URL's end: the card's path first, then what a bridge serves JSON-RPC at.
        address = address.removesuffix(suffix)
    return address


def token_variable(name: str) -> str:
    return f"CSTP_TOKEN_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"


def require_agent_url(_: click.Context, __: click.Parameter, url: str) -> str:
    """Return a URL by which an agent can be called. Raises click.BadParameter."""
    try:
        target_scheme(url)
    except InvalidArgument as error:
        raise click.BadParameter(error.violations[0].description) from error
    return url


def require_variable_name(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """Return the name of an environment variable. Raises click.BadParameter."""
    if name is not None and not VARIABLE_NAME.fullmatch(name):
        raise click.BadParameter(f"{name!r} is not the name of an environment variable")
    return name


EXIT_PEER_UNHEALTHY = 3
"""The exit code if a required peer is unhealthy: actions that need its verdict are blocked."""
PROBE_SECONDS = 3.0
"""Seconds to wait for an agent by default."""

timeout_option = seconds_option(PROBE_SECONDS, "How long to wait for an answer.")


@click.group(invoke_without_command=True)
@timeout_option
@config_option
@with_output
def peers_group(out: Output, seconds: float) -> None:
    """List peers with health and latency. Peers are the agents in federation.peers; their version and card are
    shown, too.

    This machine asks them, by the configuration; `cstp peers list` lets a running server ask. All are asked
    concurrently. Exit code 0 means that every required peer is healthy, 3 that one is not: actions that need its
    verdict are blocked.

    \b
    Examples:
      cstp peers --config cstp.yaml
      cstp peers --json
    """
    if click.get_current_context().invoked_subcommand is not None:
        return
    settings = current_state().settings()
    found = probe_peers(settings, seconds)
    if out.json_wanted:
        out.document({"agents": [peer_to_json(standing) for standing in found]})
    else:
        out.show(lambda console: print_peers(console, found))
    for standing in found:
        if standing.access and standing.access.agent == settings.agent.name:
            name = standing.configured.name
            out.note(
                f"{name} calls itself {settings.agent.name}, as this agent does: give each an agent.name of its own."
            )
    if any(standing.configured.role == "required" and not standing.healthy for standing in found):
        click.get_current_context().exit(EXIT_PEER_UNHEALTHY)


@peers_group.command()
@click.option(
    "--peer-timeout",
    "timeout_seconds",
    type=click.FloatRange(min=0, min_open=True, max=30),
    metavar="SECONDS",
    help="Maximum time for each peer. [default: its own]",
)
@calls_rpc("list_peers")
def list_command(console: Console, answer: status_pb2.ListPeersResponse) -> None:
    """Let the server ask its peers for their health.

    Needs the permission admin.

    \b
    Examples:
      cstp peers list
      cstp peers list --agent grpcs://cstp.example.com:50051 --json
    """
    status_output.print_peers(console, answer.peers)


@peers_group.command()
@click.argument("url", callback=require_agent_url)
@click.option("--name", help="Name of the peer. [default: the one on its card]")
@click.option(
    "--role",
    type=click.Choice(["required", "advisory"]),
    default="advisory",
    show_default=True,
    help="Whether its verdict is required to allow an action, or only warns.",
)
@click.option(
    "--token-env",
    metavar="NAME",
    callback=require_variable_name,
    help="Environment variable with its token. [default: CSTP_TOKEN_ and its name]",
)
@click.option("--category", "categories", multiple=True, help="A category that it is asked about. [default: all]")
@click.option("--ca-file", type=FILE, help="PEM file of the CAs that certify it.")
@click.option("--card-key", type=FILE, help="The public key that must have signed its card: PEM, or a JSON Web Key.")
@click.option("--dry-run", is_flag=True, help="Print the change without making it.")
@timeout_option
@config_option
@with_output
def add_command(out: Output, url: str, dry_run: bool, seconds: float, **described: Any) -> None:
    """Add a peer by its agent card. Reads the card at URL, and writes the agent into federation.peers of the
    configuration file.

    URL is that of a card, of a site that has one, or of a bridge; an agent at a grpc:// or grpcs:// URL is asked for
    its name. The rest of the file stays unchanged, and tokens stay in the environment.

    \b
    Examples:
      cstp peers add https://security.example.com --role required --config cstp.yaml
      cstp peers add https://ops.example.com --card-key ops.pub --config cstp.yaml
      cstp peers add grpcs://qa.example.com:50051 --name qa --category deployment --dry-run
    """
    path = current_state().config_path
    if path is None:
        raise click.UsageError("Name the configuration file with --config FILE or CSTP_CONFIG.")
    new_peer = NewPeer(url, **described)
    current_state().endpoint = Endpoint(
        url, "the command line", new_peer.token, new_peer.variable, ca_file=new_peer.ca_file
    )
    found = plan_peer(path, new_peer, seconds)
    if not dry_run:
        config.replace_file(path, found.text)
    is_set = found.variable in config.inherited_environment([found.variable])
    if out.json_wanted:
        out.document(peer_change_to_json(found, path, is_set=is_set, written=not dry_run))
    elif dry_run:
        out.write_verbatim(f"{found.diff}\n")
    else:
        name = found.entry["name"]
        out.line(to_printable(f"{path} has {name} at {found.entry['url']} now, which is {found.entry['role']}."))
        token = "" if is_set else f"set {found.variable} to the token by which {name} knows this agent, "
        out.line(to_printable(f"Next: {token}restart the server, and look with `cstp peers` whether {name} answers."))


def peer_change_to_json(added: PeerConfigChange, path: Path, *, is_set: bool, written: bool) -> dict[str, Any]:
    return {
        "peer": added.entry,
        "configuration": str(path),
        "tokenVariable": added.variable,
        "tokenIsSet": is_set,
        "written": written,
        "diff": added.diff,
    }


def print_peers(console: Console, found: Sequence[PeerHealth]) -> None:
    if not found:
        console.print("federation.peers names no agents; `cstp peers add URL` adds one.")
        return
    table = TextTable()
    for item in found:
        failure = str(item.status).replace("_", " ")
        health = Text("healthy", style="green") if item.healthy else Text(failure, style="red")
        table.add_row(
            item.configured.role,
            health,
            f"{item.latency_ms:.0f} ms",
            entry_text(peer_headline(item), peer_details(item)),
        )
    console.print(table)


def peer_headline(item: PeerHealth) -> str:
    name, card = item.configured.name, item.card
    calls_itself = item.access.agent if item.access else card.name if card else name
    itself = f" ({calls_itself})" if calls_itself != name else ""
    version = f" {item.version}" if item.version else ""
    described = f": {card.description}" if card and card.description else ""
    return f"{name}{itself}{version}{described}"


def peer_details(item: PeerHealth) -> list[str]:
    """Return the details of a peer below its headline."""
    configured, failure = item.configured, item.reply.failure
    return [
        configured.url,
        f"for {', '.join(configured.categories)}" if configured.categories else "",
        f"knows us as {item.access.requesting_agent}" if item.access else "",
        f"does not permit us to {' or '.join(item.missing_permissions)}" if item.missing_permissions else "",
        f"{item.card.skills} skills" if item.card else "",
        f"{failure.reason}: {failure.message}" if failure else "",
    ]


def peer_to_json(item: PeerHealth) -> dict[str, Any]:
    configured = item.configured
    found: dict[str, Any] = {
        **json_members(configured, "name", "url", "role", "categories"),
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
        found["card"] = json_members(item.card, "name", "version", "description", "skills")
    if item.reply.failure:
        found["error"] = json_members(item.reply.failure, "reason", "message")
    return found
