"""The settings, and the only reader of file and environment."""

from cstp_grpc.config.hosts import is_loopback, join, reachable
from cstp_grpc.config.reading import (
    ENV_PREFIX,
    CommandEnvironment,
    command_environment,
    describe,
    expand_text,
    forbid_telemetry,
    inherited_environment,
    load,
    merge,
    parse_yaml,
)
from cstp_grpc.config.sections import (
    A2aSettings,
    AgentSettings,
    AuthSettings,
    EmbeddingSettings,
    GrpcSettings,
    IndexSettings,
    ProviderSettings,
    RateLimitSettings,
    ServerSettings,
    Settings,
    TokenSettings,
)
from cstp_grpc.errors import ConfigError

__all__ = [
    "ENV_PREFIX",
    "A2aSettings",
    "AgentSettings",
    "AuthSettings",
    "CommandEnvironment",
    "ConfigError",
    "EmbeddingSettings",
    "GrpcSettings",
    "IndexSettings",
    "ProviderSettings",
    "RateLimitSettings",
    "ServerSettings",
    "Settings",
    "TokenSettings",
    "command_environment",
    "describe",
    "expand_text",
    "forbid_telemetry",
    "inherited_environment",
    "is_loopback",
    "join",
    "load",
    "merge",
    "parse_yaml",
    "reachable",
]
