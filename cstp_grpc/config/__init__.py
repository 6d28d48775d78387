"""The settings; the only package that reads configuration files and the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstp_grpc.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from cstp_grpc.config.environment import (
        ENV_PREFIX,
        CommandEnvironment,
        command_environment,
        environment_without_settings,
        forbid_telemetry,
        inherited_environment,
        silence_grpc,
    )
    from cstp_grpc.config.federation import (
        CallbackSettings,
        FederationSettings,
        PeerSettings,
        QuorumSettings,
        ShareSettings,
    )
    from cstp_grpc.config.hosts import dial_host, is_loopback, join_host_port
    from cstp_grpc.config.liaison import PILLARS, LiaisonSettings, PillarSettings, RetentionSettings
    from cstp_grpc.config.listeners import (
        A2aSettings,
        GrpcSettings,
        PushSettings,
        ServerSettings,
        ServeSettings,
        TlsSettings,
        count_bridges,
        count_workers,
    )
    from cstp_grpc.config.loading import (
        build_settings,
        deep_merge,
        describe_validation_error,
        load_settings,
        validate_text,
    )
    from cstp_grpc.config.settings import (
        AgentSettings,
        AuthSettings,
        EmbeddingSettings,
        IndexSettings,
        ProviderSettings,
        RateLimitSettings,
        Settings,
        TokenSettings,
    )
    from cstp_grpc.config.yaml_editing import add_peer, replace_file
    from cstp_grpc.config.yaml_file import expand_text, parse_yaml, read_data_dir, read_text
    from cstp_grpc.errors import ConfigError
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "cstp_grpc.config.environment": (
                "CommandEnvironment",
                "ENV_PREFIX",
                "command_environment",
                "environment_without_settings",
                "forbid_telemetry",
                "inherited_environment",
                "silence_grpc",
            ),
            "cstp_grpc.config.federation": (
                "CallbackSettings",
                "FederationSettings",
                "PeerSettings",
                "QuorumSettings",
                "ShareSettings",
            ),
            "cstp_grpc.config.hosts": (
                "is_loopback",
                "dial_host",
                "join_host_port",
            ),
            "cstp_grpc.config.liaison": (
                "LiaisonSettings",
                "PILLARS",
                "PillarSettings",
                "RetentionSettings",
            ),
            "cstp_grpc.config.listeners": (
                "A2aSettings",
                "GrpcSettings",
                "PushSettings",
                "ServeSettings",
                "ServerSettings",
                "TlsSettings",
                "count_bridges",
                "count_workers",
            ),
            "cstp_grpc.config.loading": (
                "build_settings",
                "deep_merge",
                "describe_validation_error",
                "load_settings",
                "validate_text",
            ),
            "cstp_grpc.config.settings": (
                "AgentSettings",
                "AuthSettings",
                "EmbeddingSettings",
                "IndexSettings",
                "ProviderSettings",
                "RateLimitSettings",
                "Settings",
                "TokenSettings",
            ),
            "cstp_grpc.config.yaml_editing": (
                "add_peer",
                "replace_file",
            ),
            "cstp_grpc.config.yaml_file": (
                "expand_text",
                "parse_yaml",
                "read_data_dir",
                "read_text",
            ),
            "cstp_grpc.errors": ("ConfigError",),
        },
    )

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
    "PushSettings",
    "QuorumSettings",
    "RateLimitSettings",
    "RetentionSettings",
    "ServeSettings",
    "ServerSettings",
    "Settings",
    "ShareSettings",
    "TlsSettings",
    "TokenSettings",
    "add_peer",
    "build_settings",
    "command_environment",
    "count_bridges",
    "count_workers",
    "deep_merge",
    "describe_validation_error",
    "dial_host",
    "environment_without_settings",
    "expand_text",
    "forbid_telemetry",
    "inherited_environment",
    "is_loopback",
    "join_host_port",
    "load_settings",
    "parse_yaml",
    "read_data_dir",
    "read_text",
    "replace_file",
    "silence_grpc",
    "validate_text",
]
