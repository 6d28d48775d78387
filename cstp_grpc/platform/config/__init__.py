"""The settings; the only package that reads configuration files and the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cstp_grpc.common.lazy_imports import lazy_exports

if TYPE_CHECKING:
    from cstp_grpc.contract.errors import ConfigError as ConfigError
    from cstp_grpc.platform.config.embedding import EmbeddingSettings as EmbeddingSettings
    from cstp_grpc.platform.config.environment import ENV_PREFIX as ENV_PREFIX
    from cstp_grpc.platform.config.environment import CommandEnvironment as CommandEnvironment
    from cstp_grpc.platform.config.environment import command_environment as command_environment
    from cstp_grpc.platform.config.environment import dial_host as dial_host
    from cstp_grpc.platform.config.environment import environment_without_settings as environment_without_settings
    from cstp_grpc.platform.config.environment import forbid_telemetry as forbid_telemetry
    from cstp_grpc.platform.config.environment import inherited_environment as inherited_environment
    from cstp_grpc.platform.config.environment import is_loopback as is_loopback
    from cstp_grpc.platform.config.environment import join_host_port as join_host_port
    from cstp_grpc.platform.config.environment import silence_grpc as silence_grpc
    from cstp_grpc.platform.config.exposure import describe_plain_listeners as describe_plain_listeners
    from cstp_grpc.platform.config.identity import AuthSettings as AuthSettings
    from cstp_grpc.platform.config.identity import TokenSettings as TokenSettings
    from cstp_grpc.platform.config.listeners import A2aSettings as A2aSettings
    from cstp_grpc.platform.config.listeners import ConsoleSettings as ConsoleSettings
    from cstp_grpc.platform.config.listeners import GrpcSettings as GrpcSettings
    from cstp_grpc.platform.config.listeners import MetricsSettings as MetricsSettings
    from cstp_grpc.platform.config.listeners import OtlpSettings as OtlpSettings
    from cstp_grpc.platform.config.listeners import PushSettings as PushSettings
    from cstp_grpc.platform.config.listeners import RateLimitSettings as RateLimitSettings
    from cstp_grpc.platform.config.listeners import ServerSettings as ServerSettings
    from cstp_grpc.platform.config.listeners import ServeSettings as ServeSettings
    from cstp_grpc.platform.config.listeners import SharedRateLimitSettings as SharedRateLimitSettings
    from cstp_grpc.platform.config.listeners import TlsSettings as TlsSettings
    from cstp_grpc.platform.config.listeners import count_bridges as count_bridges
    from cstp_grpc.platform.config.listeners import count_workers as count_workers
    from cstp_grpc.platform.config.loading import build_settings as build_settings
    from cstp_grpc.platform.config.loading import deep_merge as deep_merge
    from cstp_grpc.platform.config.loading import describe_validation_error as describe_validation_error
    from cstp_grpc.platform.config.loading import load_settings as load_settings
    from cstp_grpc.platform.config.loading import validate_text as validate_text
    from cstp_grpc.platform.config.notifications import NotificationSettings as NotificationSettings
    from cstp_grpc.platform.config.other_agents import PILLARS as PILLARS
    from cstp_grpc.platform.config.other_agents import CallbackSettings as CallbackSettings
    from cstp_grpc.platform.config.other_agents import FederationSettings as FederationSettings
    from cstp_grpc.platform.config.other_agents import LiaisonSettings as LiaisonSettings
    from cstp_grpc.platform.config.other_agents import PeerSettings as PeerSettings
    from cstp_grpc.platform.config.other_agents import PillarSettings as PillarSettings
    from cstp_grpc.platform.config.other_agents import QuorumSettings as QuorumSettings
    from cstp_grpc.platform.config.other_agents import RetentionSettings as RetentionSettings
    from cstp_grpc.platform.config.other_agents import ShareSettings as ShareSettings
    from cstp_grpc.platform.config.process_log import log_events_to_stderr as log_events_to_stderr
    from cstp_grpc.platform.config.settings import AgentSettings as AgentSettings
    from cstp_grpc.platform.config.settings import ProviderSettings as ProviderSettings
    from cstp_grpc.platform.config.settings import Settings as Settings
    from cstp_grpc.platform.config.yaml_file import add_peer as add_peer
    from cstp_grpc.platform.config.yaml_file import expand_text as expand_text
    from cstp_grpc.platform.config.yaml_file import parse_yaml as parse_yaml
    from cstp_grpc.platform.config.yaml_file import read_data_dir as read_data_dir
    from cstp_grpc.platform.config.yaml_file import read_text as read_text
    from cstp_grpc.platform.config.yaml_file import replace_file as replace_file
else:
    EXPORTS = {
        "embedding": "EmbeddingSettings",
        "environment": "CommandEnvironment ENV_PREFIX command_environment dial_host environment_without_settings"
        " forbid_telemetry inherited_environment is_loopback join_host_port silence_grpc",
        "exposure": "describe_plain_listeners",
        "identity": "AuthSettings TokenSettings",
        "listeners": "A2aSettings ConsoleSettings GrpcSettings MetricsSettings OtlpSettings PushSettings"
        " RateLimitSettings ServeSettings ServerSettings SharedRateLimitSettings TlsSettings"
        " count_bridges count_workers",
        "loading": "build_settings deep_merge describe_validation_error load_settings validate_text",
        "notifications": "NotificationSettings",
        "other_agents": "CallbackSettings FederationSettings LiaisonSettings PILLARS PeerSettings PillarSettings"
        " QuorumSettings RetentionSettings ShareSettings",
        "process_log": "log_events_to_stderr",
        "settings": "AgentSettings ProviderSettings Settings",
        "yaml_file": "add_peer expand_text parse_yaml read_data_dir read_text replace_file",
    }
    modules = {f"{__name__}.{module}": names for module, names in EXPORTS.items()}
    __getattr__ = lazy_exports(__name__, {**modules, "cstp_grpc.contract.errors": "ConfigError"})
