"""YAML files whose values may refer to environment variables, the data folder that one names, and adding a peer to one.

A peer is added without changing comments, layout and references: the text is changed only where the YAML nodes are. The
result is parsed again and compared with the expected content.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from cstp_grpc.contract.errors import ConfigError
from cstp_grpc.platform.config.environment import ENV_PREFIX

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


INDENT: Final = 2
FEDERATION: Final = "federation"
PEERS: Final = "peers"


def add_peer(text: str, path: Path, entry: Mapping[str, Any]) -> str:
    """Return the text of a configuration file with one more entry in `federation.peers`.

    Raises ConfigError for an invalid configuration, and if the entry cannot be added without changing the layout.
    """
    expected = content_with_peer(parse_yaml_text(text, path), entry)
    if expected is None:
        raise ConfigError(f"{path}: {FEDERATION}.{PEERS}: is no list")
    try:
        changed = insert_peer_text(text, yaml.compose(text, Loader=yaml.SafeLoader), dict(entry))
        # The edit works on text; that it means what was asked for is checked here, whatever the layout of the file.
        correct = parse_yaml_text(changed, path) == expected
    except ConfigError:
        correct = False
    if not correct:
        by_hand = dump_block({FEDERATION: {PEERS: [dict(entry)]}}, 0)
        raise ConfigError(f"{path}: cannot be added to without changing its layout; write by hand\n{by_hand}")
    return changed


def content_with_peer(content: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the content of a file with one more peer, or None if its peers are not a list."""
    federation = content.get(FEDERATION) or {}
    peers = (federation.get(PEERS) or []) if isinstance(federation, dict) else None
    if not isinstance(peers, list):
        return None
    return {**content, FEDERATION: {**federation, PEERS: [*peers, dict(entry)]}}


def replace_file(path: Path, text: str) -> None:
    """Replace the content of a file atomically, keeping its owner and mode. Raises ConfigError."""
    # A symbolic link stays one: the file behind it is replaced.
    target = path.resolve()
    try:
        status = target.stat()
        # In the same folder, so that the rename stays within one file system. mkstemp creates it with mode 0600: the
        # file may hold tokens.
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                os.fchown(descriptor, status.st_uid, status.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(status.st_mode))
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            # After the fsync: a rename that reaches the disk before the content would leave an empty file after a power
            # failure.
            Path(name).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def insert_peer_text(text: str, root: yaml.Node | None, entry: dict[str, Any]) -> str:
    """Insert a peer into the text of a file, at the existing peers or where they belong. Raises ConfigError."""
    if isinstance(root, yaml.MappingNode) and root.flow_style and not root.value:
        # `{}` alone: there is no layout to follow, so its own style is kept.
        before, after = split_around(text, root)
        return before + dump_flow({FEDERATION: {PEERS: [entry]}}) + after
    if not isinstance(root, yaml.MappingNode):
        return append_keys(text, {FEDERATION: {PEERS: [entry]}})
    federation_key, federation = find_pair(root, FEDERATION)
    if federation_key is None or federation is None:
        if root.flow_style:
            return extend_collection(text, root, {FEDERATION: {PEERS: [entry]}})
        return append_keys(text, {FEDERATION: {PEERS: [entry]}})
    peers_key, peers = find_pair(federation, PEERS)
    if isinstance(peers, yaml.SequenceNode) and peers.value:
        return extend_collection(text, peers, [entry])
    if peers_key is not None and peers is not None:
        return fill_empty_value(text, is_flow_style(federation), peers_key, peers, [entry])
    if isinstance(federation, yaml.MappingNode) and federation.value:
        return extend_collection(text, federation, {PEERS: [entry]})
    return fill_empty_value(text, is_flow_style(root), federation_key, federation, {PEERS: [entry]})


def is_flow_style(node: yaml.Node) -> bool:
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def find_pair(node: yaml.Node, key: str) -> tuple[yaml.Node, yaml.Node] | tuple[None, None]:
    if isinstance(node, yaml.MappingNode):
        for key_node, value in node.value:
            if key_node.value == key:
                return key_node, value
    return None, None


def append_keys(text: str, content: dict[str, Any]) -> str:
    newline = detect_newline(text)
    before = text.rstrip()
    gap = 2 * newline if before else ""
    return before + gap + newline.join(dump_block(content, 0).splitlines()) + newline


def extend_collection(text: str, node: yaml.CollectionNode, content: Any) -> str:
    if node.flow_style:
        # The closing brace or bracket, which the end mark is behind.
        at = node.end_mark.index - 1
        before = text[:at].rstrip()
        return f"{before}{'' if before.endswith(',') else ','} {dump_flow(content)[1:-1]}{text[at:]}"
    # After a comment on the last line, which belongs to that line.
    at = find_line_end(text, find_content_end(text, node))
    return insert_lines(text, at, dump_block(content, node.start_mark.column))


def fill_empty_value(text: str, within_flow: bool, key: yaml.Node, value: yaml.Node, content: Any) -> str:
    """Replace the empty value of a key with content. Raises ConfigError."""
    before, after = split_around(text, value)
    if within_flow:
        return f"{before.rstrip()} {dump_flow(content)}{after}"
    emptied = before.rstrip(" ") + after
    return insert_lines(
        emptied, find_line_end(emptied, key.end_mark.index), dump_block(content, key.start_mark.column + INDENT)
    )


def split_around(text: str, node: yaml.Node) -> tuple[str, str]:
    """Split a text around an empty value. Raises ConfigError if the value contains comments."""
    start, end = node.start_mark.index, node.end_mark.index
    if "#" in text[start:end]:
        raise ConfigError("comments would be lost")
    return text[:start], text[end:]


def insert_lines(text: str, at: int, lines: str) -> str:
    newline = detect_newline(text)
    return text[:at] + newline + newline.join(lines.splitlines()) + (text[at:] or newline)


def find_content_end(text: str, node: yaml.Node) -> int:
    """Return the end offset of the content of a node; a block ends before the comments that follow it."""
    # The end mark of a block is at the next token, after blank lines and comments.
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return find_content_end(text, last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return len(text[:end].rstrip()) if end > node.start_mark.index else end


def find_line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    if end == -1:
        return len(text)
    return end - 1 if text[end - 1] == "\r" else end


def detect_newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


class IndentedListDumper(yaml.SafeDumper):
    """A YAML dumper that indents lists below their keys."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Increase the indentation, for lists too."""
        super().increase_indent(flow, indentless=False)


def dump_block(content: Any, column: int) -> str:
    lines = dump_yaml(content, in_flow=False).splitlines()
    return "\n".join(" " * column + line for line in lines)


def dump_flow(content: Any) -> str:
    return dump_yaml(content, in_flow=True).strip()


def dump_yaml(content: Any, *, in_flow: bool) -> str:
    written: str = yaml.dump(
        content,
        Dumper=IndentedListDumper,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
        indent=INDENT,
        default_flow_style=in_flow,
    )
    return written
