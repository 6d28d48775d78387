"""The settings, and the only reader of file and environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstp_grpc.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from cstp_grpc.config.data_folder import read_data_dir
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
    from cstp_grpc.config.hosts import is_loopback, join, reachable
    from cstp_grpc.config.liaison import PILLARS, LiaisonSettings, PillarSettings, RetentionSettings
    from cstp_grpc.config.listening import (
        A2aSettings,
        GrpcSettings,
        PushSettings,
        ServerSettings,
        ServeSettings,
        TlsSettings,
    )
    from cstp_grpc.config.process_counts import count_bridges, count_workers
    from cstp_grpc.config.reading import build_settings, describe, judge, load, merge
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
    from cstp_grpc.config.yaml_file import expand_text, parse_yaml, read_text
    from cstp_grpc.errors import ConfigError
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "cstp_grpc.config.data_folder": ("read_data_dir",),
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
                "join",
                "reachable",
            ),
            "cstp_grpc.config.liaison": (
                "LiaisonSettings",
                "PILLARS",
                "PillarSettings",
                "RetentionSettings",
            ),
            "cstp_grpc.config.listening": (
                "A2aSettings",
                "GrpcSettings",
                "PushSettings",
                "ServeSettings",
                "ServerSettings",
                "TlsSettings",
            ),
            "cstp_grpc.config.process_counts": (
                "count_bridges",
                "count_workers",
            ),
            "cstp_grpc.config.reading": (
                "build_settings",
                "describe",
                "judge",
                "load",
                "merge",
            ),
            "cstp_grpc.config.sections": (
                "AgentSettings",
                "AuthSettings",
                "EmbeddingSettings",
                "IndexSettings",
                "ProviderSettings",
                "RateLimitSettings",
                "Settings",
                "TokenSettings",
            ),
            "cstp_grpc.config.writing": (
                "replace_file",
                "with_peer",
            ),
            "cstp_grpc.config.yaml_file": (
                "expand_text",
                "parse_yaml",
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
    "build_settings",
    "command_environment",
    "count_bridges",
    "count_workers",
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
    "read_data_dir",
    "read_text",
    "replace_file",
    "silence_grpc",
    "with_peer",
]
