"""Where the data folder is, for commands that call this machine's server and need no other setting."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from cstp_grpc.config.environment import ENV_PREFIX
from cstp_grpc.config.yaml_file import expand_text, parse_yaml

KEY: Final = "data_dir"
DEFAULT_DATA_DIR: Final = Path("var")


def read_data_dir(path: Path | None) -> Path | None:
    """Return the data folder that a configuration file (None: no file) and the environment name, or the default one.

    None where what is written is no path, which only the settings as a whole can explain. Raises ConfigError.
    """
    # Settings take names of the environment without regard to capitals.
    named = {name.upper(): value for name, value in os.environ.items()}.get(f"{ENV_PREFIX}{KEY}".upper())
    if named is not None:
        return Path(named)
    content = {} if path is None else parse_yaml(path)
    if path is None or KEY not in content:
        return DEFAULT_DATA_DIR
    if not isinstance(content[KEY], str):
        return None
    written = expand_text(content[KEY], str(path))
    return path.parent / written if written else Path()
