"""The state of the running command: its options that hold for all commands, and the settings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cstp_grpc.platform.config.environment import command_environment

if TYPE_CHECKING:
    from cstp_grpc.cli.server_choice import Endpoint
    from cstp_grpc.platform.config import Settings


class CommandState:
    """The state of the running command."""

    def __init__(self, config_file: Path | None = None) -> None:
        self.json_wanted = False
        self.config_file = config_file
        self.endpoint: Endpoint | None = None
        self.loaded: Settings | None = None
        """The settings, once a command has needed them."""

    def settings(self) -> Settings:
        """Return the settings, loaded on first use. Raises ConfigError."""
        if self.loaded is None:
            from cstp_grpc.platform import config

            self.loaded = config.load_settings(self.config_path)
        return self.loaded

    def data_dir(self) -> Path:
        """Return the data folder, without validating the other settings if possible. Raises ConfigError."""
        from cstp_grpc.platform.config.yaml_file import read_data_dir

        return read_data_dir(self.config_path) or self.settings().data_dir

    @property
    def config_path(self) -> Path | None:
        """The configuration file: --config, or the environment's."""
        return self.config_file or command_environment().config
