"""The setup of a developer's server: a token, an agents file, example decisions."""

from __future__ import annotations

import json
import os
import secrets
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from cstp_grpc.cli.server_choice import AGENTS_FILE
from cstp_grpc.common.lazy_dataclass import dataclass, replace
from cstp_grpc.contract.caller import APPROVER, DEVELOPER
from cstp_grpc.contract.enums import Permission
from cstp_grpc.core.decisions.model import ImportRecord, SourceLinks
from cstp_grpc.modules.liaison.model import liaison_agent
from cstp_grpc.platform.config import ConfigError, Settings, TlsSettings, TokenSettings
from cstp_grpc.platform.config.environment import APPROVER_TOKEN_FILE, DEVELOPER_TOKEN_FILE, command_path

if TYPE_CHECKING:
    from cstp_grpc.client import CstpClient


TOKEN_BYTES = 32
"""256 bits of randomness, the default of `secrets`."""
EXAMPLES_FILE = Path(__file__).with_name("examples") / "decisions.yaml"
ACTIVITY_FILE = EXAMPLES_FILE.with_name("activity.yaml")
EXAMPLE_SOURCE = f"examples/{EXAMPLES_FILE.name}#"
"""The beginning of the sources of imported examples."""


@dataclass(frozen=True, slots=True)
class DeveloperToken:
    """A token in the data folder; `created` is True if it is new."""

    text: str
    path: Path
    created: bool


def developer_token(data_dir: Path, file: str = DEVELOPER_TOKEN_FILE) -> DeveloperToken:
    """Return the token in a file of the data folder; the first start creates it. Raises ConfigError."""
    path = data_dir / file
    # Others cannot enter a new data folder; an existing one keeps its mode.
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Made before it is known whether it is needed: creating the file is the test whether there is one, so that two
    # first starts at once agree on one token.
    text = secrets.token_urlsafe(TOKEN_BYTES)
    try:
        write_private(path, text)
        return DeveloperToken(text, path, created=True)
    except FileExistsError:
        return DeveloperToken(read_private(path), path, created=False)


def write_private(path: Path, text: str) -> None:
    """Write a new file that only its owner may read. Raises FileExistsError."""
    # The mode at creation, because a chmod afterwards would leave it readable for a moment. O_EXCL also refuses a link
    # that somebody else put there.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)


def read_private(path: Path) -> str:
    """Return a secret that only its owner may read. Raises ConfigError."""
    # As ssh does with private keys: anyone who could read it may have read it.
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path}: others may read it; delete it, and the next start makes a new one")
    text = path.read_text(encoding="utf-8").strip()
    if not text:
        raise ConfigError(f"{path}: is empty; delete it, and the next start makes a new one")
    return text


def with_approver(settings: Settings) -> Settings:
    """Return the settings with a person who approves, and how to do it; its first start makes the token.

    Raises ConfigError.
    """
    token = developer_token(settings.data_dir, APPROVER_TOKEN_FILE)
    settings = with_agent(settings, APPROVER, token.text, frozenset({Permission.APPROVE}))
    if settings.approvals.instructions is not None:
        return settings
    agents_file = (settings.data_dir / AGENTS_FILE).absolute()
    words = (command_path(), "approvals", "grant", "{id}", "--agents-file", str(agents_file), "--agent", APPROVER)
    command = " ".join(word if word == "{id}" else shlex.quote(word) for word in words)
    approvals = settings.approvals.model_copy(update={"instructions": command})
    return settings.model_copy(update={"approvals": approvals})


def with_agent(
    settings: Settings, name: str, token: str, permissions: frozenset[Permission] = frozenset(Permission)
) -> Settings:
    added = TokenSettings(name=name, token=SecretStr(token), permissions=permissions)
    auth = settings.auth.model_copy(update={"tokens": [*settings.auth.tokens, added]})
    return settings.model_copy(update={"auth": auth})


def with_loopback_push(settings: Settings) -> Settings:
    push = settings.a2a.push.model_copy(update={"allow_loopback": True})
    return settings.model_copy(update={"a2a": settings.a2a.model_copy(update={"push": push})})


def with_local_agents(settings: Settings, name: str) -> Settings:
    """Return the settings with an agent for each local pillar that lacks one.

    A pillar has one if it names one, or if an agent with a token has the name of its liaison agent.
    """
    callers = {token.name for token in settings.auth.tokens}
    pillars = {
        pillar: found.model_copy(update={"agent": name})
        if found.kind == "local" and found.agent is None and liaison_agent(pillar) not in callers
        else found
        for pillar, found in settings.liaison.pillars.items()
    }
    return settings.model_copy(update={"liaison": settings.liaison.model_copy(update={"pillars": pillars})})


def write_agents_file(settings: Settings, url: str, bridge: str | None, token: str | None) -> Path:
    """Write the agents file that describes this server and its bridge, and return its path."""
    secret = {} if token is None else {"token": token}
    agents = [{"name": DEVELOPER, "url": url, **secret, **authority_entry(settings.grpc.tls)}]
    if bridge:
        agents.append({"name": f"{DEVELOPER}-http", "url": bridge, **secret, **authority_entry(settings.server.tls)})
    if approver := next((each for each in settings.auth.tokens if each.name == APPROVER), None):
        token = approver.token.get_secret_value()
        agents.append({"name": APPROVER, "url": url, "token": token, **authority_entry(settings.grpc.tls)})
    path = settings.data_dir / AGENTS_FILE
    # Renamed when complete: commands that read the file at the same time see the old one or the new one.
    unfinished = path.with_suffix(".new")
    unfinished.unlink(missing_ok=True)
    # JSON is YAML, too, and is read without loading a parser of YAML, which takes longer than a call.
    write_private(unfinished, json.dumps({"agents": agents}, indent=2) + "\n")
    return unfinished.replace(path)


def authority_entry(tls: TlsSettings | None) -> dict[str, str]:
    """Return the ca_file entry of an agents file: the server's own certificate, by its absolute path."""
    return {} if tls is None else {"ca_file": str(tls.certificate.absolute())}


def import_examples(client: CstpClient) -> int:
    from cstp_grpc.core.decisions.messages import IMPORT

    return len(list(client.import_decisions(IMPORT.encode(record) for record in read_examples())))


def read_examples() -> Iterator[ImportRecord]:
    """Yield the example decisions. Raises ValueError if one cannot be read."""
    # Not loaded before it is needed: only the first start of a developer's server imports anything.
    from cstp_grpc.modules.importing import ParsedRecord, read_records

    for parsed in read_records([EXAMPLES_FILE]):
        if not isinstance(parsed, ParsedRecord):
            raise ValueError(f"{parsed.path}:{parsed.line}: {parsed.reason}")  # noqa: TRY004 - the file is wrong
        record, links = parsed.record, parsed.record.links
        # Sources identify decisions, so that they must not depend on the folder of the installation.
        kinds = ("supersedes", "superseded_by", "depends_on", "relates_to")
        renamed = SourceLinks(**{kind: tuple(map(stable_source, getattr(links, kind))) for kind in kinds})
        yield replace(record, source=stable_source(record.source), links=renamed)


def stable_source(source: str) -> str:
    """Return the source of an example without the installation's folder."""
    return f"{EXAMPLE_SOURCE}{source.rpartition('#')[2]}"


def is_new_journal(settings: Settings) -> bool:
    """Return whether a server would create its journal: a SQLite file that does not exist."""
    path = settings.storage_url.removeprefix("sqlite:///")
    return path != settings.storage_url and not Path(path).exists()


def read_activity() -> dict[str, Any]:
    import yaml

    found: dict[str, Any] = yaml.safe_load(ACTIVITY_FILE.read_text(encoding="utf-8"))
    return found


def example_agents() -> list[str]:
    """Return the agents of the activity, the approver last."""
    activity = read_activity()
    done = [*activity["decisions"], *activity["routine"], *activity["moments"]]
    return [*sorted({each["by"] for each in done}), activity["approver"]]
