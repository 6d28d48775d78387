"""The settings, and the only reader of file and environment."""

from cstp_grpc.config.federation import (
    CallbackSettings,
    FederationSettings,
    PeerSettings,
    QuorumSettings,
    ShareSettings,
)
from cstp_grpc.config.hosts import is_loopback, join, reachable
from cstp_grpc.config.liaison import PILLARS, LiaisonSettings, PillarSettings, RetentionSettings
from cstp_grpc.config.listening import A2aSettings, GrpcSettings, ServerSettings, TlsSettings
from cstp_grpc.config.reading import (
    ENV_PREFIX,
    CommandEnvironment,
    build_settings,
    command_environment,
    describe,
    environment_without_settings,
    expand_text,
    forbid_telemetry,
    inherited_environment,
    judge,
    load,
    merge,
    parse_yaml,
    read_text,
)
from cstp_grpc.config.sections import (
    AgentSettings,
    AuthSettings,
    EmbeddingSettings,
    IndexSettings,
    ProviderSettings,
    RateLimitSettings,
    Settings,
    TokenSettings,
)
from cstp_grpc.config.writing import replace_file, with_peer
from cstp_grpc.errors import ConfigError

__all__ = [
    "ENV_PREFIX",
    "PILLARS",
    "A2aSettings",
    "AgentSettings",
    "AuthSettings",
    "CallbackSettings",
    "CommandEnvironment",
    "ConfigError",
    "EmbeddingSettings",
    "FederationSettings",
    "GrpcSettings",
    "IndexSettings",
    "LiaisonSettings",
    "PeerSettings",
    "PillarSettings",
    "ProviderSettings",
    "QuorumSettings",
    "RateLimitSettings",
    "RetentionSettings",
    "ServerSettings",
    "Settings",
    "ShareSettings",
    "TlsSettings",
    "TokenSettings",
    "build_settings",
    "command_environment",
    "describe",
    "environment_without_settings",
    "expand_text",
    "forbid_telemetry",
    "inherited_environment",
    "is_loopback",
    "join",
    "judge",
    "load",
    "merge",
    "parse_yaml",
    "reachable",
    "read_text",
    "replace_file",
    "with_peer",
]
