"""YAML files whose values may refer to environment variables, and the data folder that a configuration names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from cstp_grpc.config.environment import ENV_PREFIX
from cstp_grpc.errors import ConfigError

BOOLEAN_TAG = "tag:yaml.org,2002:bool"
"""The tag of booleans in YAML."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class ConfigLoader(yaml.SafeLoader):
    """Loads YAML and rejects duplicate keys, of which the last would win silently.

    As in YAML 1.2, `on`, `off`, `yes` and `no` are strings, so that they need no quotes; boolean settings accept them.
    """

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Return the next mapping of the file. Raises ConfigError for duplicate keys."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in lines:
                raise ConfigError(f"line {line}: the key `{name}` is given twice; the first is on line {lines[name]}")
            lines[name] = line
        return node


# PyYAML follows YAML 1.1, in which `on`, `off`, `yes` and `no` are booleans, too. The resolvers are keyed by the first
# character of a scalar, so that only `true` and `false` keep theirs. A new dict: the class shares that of SafeLoader.
ConfigLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != BOOLEAN_TAG or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, without expanding references. Raises ConfigError, also for duplicate keys."""
    return parse_yaml_text(read_text(path), path)


def read_text(path: Path) -> str:
    """Return the text of a file with its line separators unchanged. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not YAML: it holds characters that YAML does not allow") from None


def parse_yaml_text(text: str, path: Path) -> dict[str, Any]:
    """Parse the text of a YAML file into a mapping; see `parse_yaml`. Raises ConfigError."""
    try:
        content = ConfigLoader(text).get_single_data()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except yaml.MarkedYAMLError as error:
        # Without the context that PyYAML adds: the quoted line may hold a token.
        line = f" at line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigError(f"{path}: is not YAML{line}: {error.problem}") from None
    except yaml.YAMLError:
        raise ConfigError(f"{path}: is not YAML: it holds characters that YAML does not allow") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: must be a mapping")
    return content


def expand_text(text: str, where: str) -> str:
    """Return a text with every `${NAME}` replaced from the environment.

    Raises ConfigError with the source `where` and the unset names.
    """
    return str(expand_references(text, where))


def expand_references(value: Any, where: str, environment: Mapping[str, str] = os.environ) -> Any:
    """Return `value` with every `${NAME}` in its strings replaced. Raises ConfigError like `expand_text`."""
    missing: set[str] = set()
    replaced = expand_value(value, environment, missing)
    if missing:
        raise ConfigError(f"{where}: not set in the environment: {', '.join(sorted(missing))}")
    return replaced


def expand_value(value: Any, environment: Mapping[str, str], missing: set[str]) -> Any:
    """Return `value` with every `${NAME}` in its strings replaced, and add unset names to `missing`."""
    if isinstance(value, dict):
        return {key: expand_value(item, environment, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [expand_value(item, environment, missing) for item in value]
    if not isinstance(value, str):
        return value
    # An empty variable counts as unset: an empty token would be accepted or sent as one.
    missing.update(name for name in REFERENCE.findall(value) if not environment.get(name))
    # One pass: what a variable holds is not expanded again.
    return REFERENCE.sub(lambda match: environment.get(match[1], ""), value)


DATA_DIR_KEY: Final = "data_dir"
DEFAULT_DATA_DIR: Final = Path("var")


def read_data_dir(path: Path | None) -> Path | None:
    """Return the data folder from a configuration file (None: no file) and the environment, or the default one.

    Return None if the value is not a path: loading the whole settings then reports the problem. Raises ConfigError.
    """
    # Names of environment variables are compared without regard to case, as pydantic-settings does.
    named = {name.upper(): value for name, value in os.environ.items()}.get(f"{ENV_PREFIX}{DATA_DIR_KEY}".upper())
    # An empty variable counts here as given, as for pydantic: the working directory.
    if named is not None:
        return Path(named)
    content = {} if path is None else parse_yaml(path)
    if path is None or DATA_DIR_KEY not in content:
        return DEFAULT_DATA_DIR
    if not isinstance(content[DATA_DIR_KEY], str):
        return None
    written = expand_text(content[DATA_DIR_KEY], str(path))
    return path.parent / written if written else Path()
