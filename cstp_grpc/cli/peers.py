"""The peers of the configuration: how they are, and how one more gets there."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from cstp_grpc import config
from cstp_grpc.cli.agent_card import CARD_PATH, ENDPOINT, card_url, read_keys
from cstp_grpc.cli.endpoint import read_bytes
from cstp_grpc.client import CstpClient
from cstp_grpc.client.contract import methods
from cstp_grpc.client.federation.cards import Card, read_card
from cstp_grpc.client.federation.gather import Reply, gather
from cstp_grpc.client.federation.replies import Failure, understand
from cstp_grpc.client.transport import grpc_address, scheme_of
from cstp_grpc.config import ConfigError, PeerSettings, Settings
from cstp_grpc.errors import AuthenticationRequired, CstpError, InvalidArgument
from cstp_grpc.gen.cstp.v1 import access_pb2, options_pb2
from cstp_grpc.server.federation import open_peers
from cstp_grpc.vocabulary import PeerStatus

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NOT_SET_YET: Final = "not-set-yet"
"""What stands for a token while its variable is not set."""
NEEDED: Final = (options_pb2.PERMISSION_QUERY, options_pb2.PERMISSION_CHECK, options_pb2.PERMISSION_ANNOUNCE)
"""What a peer must permit to be asked everything."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How a peer is: what it answered, or why it did not, and its card where there is one."""

    configured: PeerSettings
    status: PeerStatus
    latency_ms: float
    access: access_pb2.GetAccessResponse | None
    failure: Failure | None
    card: Card | None

    @property
    def healthy(self) -> bool:
        """Whether it answers."""
        return self.status is PeerStatus.ANSWERED

    @property
    def version(self) -> str:
        """The version of its software, empty where it is not known."""
        return self.access.version if self.access else self.card.version if self.card else ""

    @property
    def lacking(self) -> list[str]:
        """What we may not ask it."""
        if self.access is None:
            return []
        return [permission_word(needed) for needed in NEEDED if needed not in self.access.permissions]


def roll_call(settings: Settings, seconds: float) -> list[Standing]:
    """Return how the configured peers are, each asked at once, in their order. Raises ConfigError."""
    configured = settings.federation.peers
    if not configured:
        return []
    with ExitStack() as opened:
        peers = open_peers(opened, settings.federation)
        pool = opened.enter_context(ThreadPoolExecutor(len(configured)))
        cards = [pool.submit(card_of, peer, seconds) for peer in configured]
        replies = gather(peers, methods()["cstp.getAccess"], access_pb2.GetAccessRequest(), seconds)
        by_name = {reply.agent: reply for reply in replies}
        return [standing(peer, by_name[peer.name], card.result()) for peer, card in zip(configured, cards, strict=True)]


def standing(configured: PeerSettings, reply: Reply, card: Card | None) -> Standing:
    """Return how a peer is, by what it replied."""
    access = reply.answer if isinstance(reply.answer, access_pb2.GetAccessResponse) else None
    failure = None if access else understand(reply, required=True, trust=1.0).failure
    return Standing(configured, reply.status, reply.latency_ms, access, failure, card)


def card_of(peer: PeerSettings, seconds: float) -> Card | None:
    """Return the card of a peer that has one."""
    if scheme_of(peer.url) not in {"http", "https"}:
        return None
    token = peer.token.get_secret_value() if peer.token else None
    roots = None if peer.ca_file is None else read_bytes(peer.ca_file)
    keys = [] if peer.card_key is None else read_keys(peer.card_key)
    try:
        return read_card(card_url(peer.url), token, roots, min(seconds, peer.timeout_seconds), card_keys=keys)
    except CstpError:
        return None


def permission_word(permission: options_pb2.Permission.ValueType) -> str:
    """Return a permission as the configuration spells it."""
    return options_pb2.Permission.Name(permission).removeprefix("PERMISSION_").lower()


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the command line says of a peer to add."""

    url: str
    name: str | None
    role: str
    token_env: str | None
    categories: Sequence[str]
    ca_file: Path | None
    card_key: Path | None

    @property
    def variable(self) -> str:
        """The variable for its token; empty while it has no name to make one of."""
        return self.token_env or (variable_of(self.name) if self.name else "")

    @property
    def token(self) -> str | None:
        """The token in this variable, if it is set."""
        return config.inherited_environment([self.variable]).get(self.variable)


@dataclass(frozen=True, slots=True)
class Addition:
    """A peer that is to be added, and the text of the configuration with and without it."""

    entry: dict[str, Any]
    variable: str
    text: str = field(repr=False)
    before: str = field(repr=False)

    @property
    def diff(self) -> str:
        """What changes, line by line, and nothing around it: there may be tokens."""
        lines = difflib.unified_diff(self.before.splitlines(), self.text.splitlines(), n=0, lineterm="")
        return "\n".join(list(lines)[2:])


def addition(path: Path, wanted: Wanted, seconds: float) -> Addition:
    """Return what adding a peer makes of a configuration file, checked as a whole.

    Raises ConfigError, click.UsageError and what asking the peer raises.
    """
    before = config.read_text(path)
    present = config.judge(before, path, {}).federation.peers
    check_new(wanted.url, wanted.name, present)
    name, url = introduced(wanted, seconds)
    check_new(url, name, present)
    variable = wanted.token_env or variable_of(name)
    entry: dict[str, Any] = {"name": name, "url": url, "token": f"${{{variable}}}", "role": wanted.role}
    if wanted.categories:
        entry["categories"] = list(wanted.categories)
    if wanted.ca_file:
        entry["ca_file"] = str(path_in_file(wanted.ca_file, path.parent))
    if wanted.card_key:
        entry["card_key"] = str(path_in_file(wanted.card_key, path.parent))
    text = config.with_peer(before, path, entry)
    settings = config.judge(text, path, {variable: NOT_SET_YET})
    if name not in {peer.name for peer in settings.federation.peers}:
        raise ConfigError(f"{path}: the environment sets federation.peers, so that the file's do not count")
    with ExitStack() as opened:
        open_peers(opened, settings.federation)
    return Addition(entry, variable, text, before)


def path_in_file(path: Path, folder: Path) -> Path:
    """Return how a configuration file in a folder names a path: as it is, if it is the same one from there."""
    return path if path.is_absolute() or folder.absolute() == Path.cwd() else path.absolute()


def introduced(wanted: Wanted, seconds: float) -> tuple[str, str]:
    """Return the name of an agent and the URL to ask it by: those of its card, or where it speaks gRPC.

    Raises CstpError, click.UsageError and ConfigError.
    """
    roots = None if wanted.ca_file is None else read_bytes(wanted.ca_file)
    keys = [] if wanted.card_key is None else read_keys(wanted.card_key)
    if scheme_of(wanted.url) in {"http", "https"}:
        url = card_url(wanted.url)
        said = read_card(url, wanted.token, roots, seconds, card_keys=keys).name
    elif keys:
        raise click.UsageError(f"{wanted.url} has no agent card: --card-key needs the URL of one.")
    else:
        url = f"{scheme_of(wanted.url)}://{grpc_address(wanted.url)}"
        said = name_over_grpc(wanted, url, roots, seconds)
    name = wanted.name or re.sub(r"[^A-Za-z0-9._-]+", "-", said).strip("-._")[:100]
    if not name:
        raise click.UsageError(f"{wanted.url} does not say what it is called; say it with --name.")
    return name, url


def name_over_grpc(wanted: Wanted, url: str, roots: bytes | None, seconds: float) -> str:
    """Return what an agent calls itself; empty where it tells nobody without a token."""
    with CstpClient(url, wanted.token, timeout=seconds, root_certificates=roots) as client:
        try:
            return client.get_access().agent
        except AuthenticationRequired:
            if wanted.token:
                raise
            if wanted.name:
                return ""
            raise click.UsageError(
                f"{url} tells its name to those with a token: say with --name what to call it, or with --token-env"
                " which variable has the token."
            ) from None


def check_new(url: str, name: str | None, present: Sequence[PeerSettings]) -> None:
    """Refuse a peer that is there already. Raises click.ClickException."""
    for peer in present:
        if peer.name == name:
            raise click.ClickException(
                f"federation.peers has {name} already, at {peer.url}. Call the new one otherwise with --name."
            )
        if place_of(peer.url) == place_of(url):
            raise click.ClickException(f"federation.peers has {url} already, as {peer.name}.")


def place_of(url: str) -> str:
    """Return what is the same for all ways to write where an agent is."""
    scheme, found, rest = url.partition("://")
    address = f"grpc://{url}" if not found else f"{scheme.lower()}://{rest.lower()}"
    for suffix in (CARD_PATH, "/", ENDPOINT):
        address = address.removesuffix(suffix)
    return address


def variable_of(name: str) -> str:
    """Return the environment variable for the token of a peer."""
    return f"CSTP_TOKEN_{re.sub(r'[^A-Z0-9]', '_', name.upper())}"


def checked_url(_: click.Context, __: click.Parameter, url: str) -> str:
    """Return a URL by which an agent can be called. Raises click.BadParameter."""
    try:
        scheme_of(url)
    except InvalidArgument as error:
        raise click.BadParameter(error.violations[0].description) from error
    return url


def checked_variable(_: click.Context, __: click.Parameter, name: str | None) -> str | None:
    """Return the name of an environment variable. Raises click.BadParameter."""
    if name is not None and not VARIABLE.fullmatch(name):
        raise click.BadParameter(f"{name!r} is no name of an environment variable")
    return name
