"""The settings of a process that uses a data folder without a server, and the agent that it acts as."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from cstp_grpc.client.targets import folder_of_target
from cstp_grpc.contract.caller import ANONYMOUS, APPROVER, DEVELOPER
from cstp_grpc.contract.enums import DEFAULT_TENANT, SERVER_AGENTS
from cstp_grpc.contract.errors import InvalidArgument
from cstp_grpc.contract.limits import MAX_NAME_CHARACTERS
from cstp_grpc.platform.config import (
    A2aSettings,
    ConfigError,
    FederationSettings,
    LiaisonSettings,
    NotificationSettings,
    RateLimitSettings,
    Settings,
    command_environment,
    load_settings,
)
from cstp_grpc.platform.config.environment import DEVELOPER_TOKEN_FILE, command_path


def read_local_settings(target: str, config: str | Path | None) -> Settings:
    """Return the settings for a target, `local:PATH`; without a path, the configured data folder is used.

    They are read as `cstp serve` reads them: `config` or else the file that CSTP_CONFIG names, and the environment.
    Raises ConfigError.
    """
    folder = folder_of_target(target)
    # With a folder of its own, the journal is the file in that, whatever database is configured.
    overrides: dict[str, Any] = {} if folder is None else {"data_dir": folder, "storage": {"url": None}}
    return load_settings(Path(config) if config else command_environment().config, **overrides)


def reduce_to_local(settings: Settings) -> Settings:
    """Return the settings without features that need a server, other agents or a child process."""
    # Without a server nobody has a token, and persons only state their names.
    where = "--local" if settings.storage.url else f"--agent {shlex.quote(f'local:{settings.data_dir.absolute()}')}"
    grant = f"{shlex.quote(command_path())} approvals grant {{id}} {where} --as {APPROVER}"
    instructions = settings.approvals.instructions or grant
    return settings.model_copy(
        update={
            "approvals": settings.approvals.model_copy(update={"instructions": instructions}),
            "a2a": A2aSettings(enabled=False),
            "federation": FederationSettings(share=settings.federation.share),
            # Without projects it would answer nothing, and take as long to load as all else.
            "intent_layer": settings.intent_layer.model_copy(
                update={"enabled": settings.intent_layer.enabled and bool(settings.intent_layer.projects)}
            ),
            "liaison": LiaisonSettings(enabled=False),
            # Nothing runs after the call that could deliver a notice.
            "notifications": NotificationSettings(),
            "rate_limits": RateLimitSettings(enabled=False),
        }
    )


def choose_local_agent(settings: Settings, wanted: str | None) -> str:
    """Return the agent to act as: the given one, or the only one that a server on the same folder would know.

    That is `anonymous` without authentication, `developer` if no agent has a token or `cstp serve --dev` made one, or
    the only agent with a token. Raises InvalidArgument for a name that no agent may have, ConfigError if there are
    several agents and none is given.
    """
    if wanted is not None:
        if not 0 < len(wanted) <= MAX_NAME_CHARACTERS or wanted in SERVER_AGENTS:
            raise InvalidArgument.field(
                "agent", f"must be a name of 1 to {MAX_NAME_CHARACTERS} characters, not a reserved one"
            )
        return wanted
    if not settings.auth.enabled:
        return ANONYMOUS
    names = sorted({token.name for token in settings.auth.tokens})
    if not names or (settings.data_dir / DEVELOPER_TOKEN_FILE).exists():
        return DEVELOPER
    if len(names) > 1:
        raise ConfigError(f"auth.tokens: has several agents, so say as which one to act: {', '.join(names)}")
    return names[0]


def tenant_of_agent(settings: Settings, agent: str) -> str:
    return next((token.tenant for token in settings.auth.tokens if token.name == agent), DEFAULT_TENANT)
