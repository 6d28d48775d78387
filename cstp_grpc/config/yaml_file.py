"""Files in YAML whose values may refer to environment variables: the configuration and the agents file."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from cstp_grpc.errors import ConfigError

BOOLEAN = "tag:yaml.org,2002:bool"
"""The tag of truth values in YAML."""
REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class ConfigLoader(yaml.SafeLoader):
    """Reads YAML and refuses a mapping with a repeated key, whose last value would win without a word.

    As in YAML 1.2, `on`, `off`, `yes` and `no` are texts, so that they need no quotes where words are expected;
    settings that are true or false take these texts for what they say.
    """

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        """Return the mapping that comes next in the file. Raises ConfigError."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            line, name = key.start_mark.line + 1, str(key.value)
            if name in lines:
                raise ConfigError(f"line {line}: the key `{name}` is given twice; the first is on line {lines[name]}")
            lines[name] = line
        return node


ConfigLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != BOOLEAN or first in "tTfF"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def parse_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file as it is written. Raises ConfigError, also for a key that is given twice."""
    return parse_yaml_text(read_text(path), path)


def read_text(path: Path) -> str:
    """Return what is in a file, with its line ends as they are. Raises ConfigError."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not YAML: it holds characters that YAML does not allow") from None


def parse_yaml_text(text: str, path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file would hold with a text; see `parse_yaml`. Raises ConfigError."""
    try:
        content = ConfigLoader(text).get_single_data()
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    except yaml.MarkedYAMLError as error:
        # Only where and what: the line itself may hold a token.
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

    Raises ConfigError, which says `where` the text is from and what is not set.
    """
    return str(expanded(text, where))


def expanded(value: Any, where: str, environment: Mapping[str, str] = os.environ) -> Any:
    """Return `value` with every `${NAME}` in its texts replaced. Raises ConfigError as `expand_text` does."""
    missing: set[str] = set()
    replaced = expand(value, environment, missing)
    if missing:
        raise ConfigError(f"{where}: not set in the environment: {', '.join(sorted(missing))}")
    return replaced


def expand(value: Any, environment: Mapping[str, str], missing: set[str]) -> Any:
    """Return `value` with every `${NAME}` in its texts replaced, noting the names that are not set."""
    if isinstance(value, dict):
        return {key: expand(item, environment, missing) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, environment, missing) for item in value]
    if not isinstance(value, str):
        return value
    missing.update(name for name in REFERENCE.findall(value) if not environment.get(name))
    return REFERENCE.sub(lambda match: environment.get(match[1], ""), value)
