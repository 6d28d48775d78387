"""Adding to a configuration file, in which all else stays as it is: comments, layout, references to the environment.

The text is changed where YAML says that its parts are, and nowhere else; what comes of it is read again and compared
with what was wanted.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml

from cstp_grpc.config.yaml_file import parse_yaml_text
from cstp_grpc.errors import ConfigError

INDENT: Final = 2
FEDERATION: Final = "federation"
PEERS: Final = "peers"


def with_peer(text: str, path: Path, entry: Mapping[str, Any]) -> str:
    """Return the text of a configuration file with one more entry in `federation.peers`.

    Raises ConfigError for what is no configuration, and where the text would have to be written anew.
    """
    wanted = with_entry(parse_yaml_text(text, path), entry)
    if wanted is None:
        raise ConfigError(f"{path}: {FEDERATION}.{PEERS}: is no list")
    try:
        changed = inserted(text, yaml.compose(text, Loader=yaml.SafeLoader), dict(entry))
        right = parse_yaml_text(changed, path) == wanted
    except ConfigError:
        right = False
    if not right:
        by_hand = block({FEDERATION: {PEERS: [dict(entry)]}}, 0)
        raise ConfigError(f"{path}: cannot be added to without changing its layout; write by hand\n{by_hand}")
    return changed


def with_entry(content: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what a file would hold with one more peer; None where its peers are no list."""
    federation = content.get(FEDERATION) or {}
    peers = (federation.get(PEERS) or []) if isinstance(federation, dict) else None
    if not isinstance(peers, list):
        return None
    return {**content, FEDERATION: {**federation, PEERS: [*peers, dict(entry)]}}


def replace_file(path: Path, text: str) -> None:
    """Put a text in the place of a file's content, whole or not at all; who may read it stays. Raises ConfigError."""
    target = path.resolve()
    try:
        there = target.stat()
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
                os.fchown(descriptor, there.st_uid, there.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(there.st_mode))
                file.write(text)
                file.flush()
                os.fsync(descriptor)
            Path(name).replace(target)
        except BaseException:
            with suppress(OSError):
                Path(name).unlink()
            raise
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}") from error


def inserted(text: str, root: yaml.Node | None, entry: dict[str, Any]) -> str:
    """Return the text with an entry where the peers are, or where they would be. Raises ConfigError."""
    if isinstance(root, yaml.MappingNode) and root.flow_style and not root.value:
        before, after = around(text, root)
        return before + flow({FEDERATION: {PEERS: [entry]}}) + after
    if not isinstance(root, yaml.MappingNode):
        return appended(text, {FEDERATION: {PEERS: [entry]}})
    federation_key, federation = pair_of(root, FEDERATION)
    if federation_key is None or federation is None:
        if root.flow_style:
            return added(text, root, {FEDERATION: {PEERS: [entry]}})
        return appended(text, {FEDERATION: {PEERS: [entry]}})
    peers_key, peers = pair_of(federation, PEERS)
    if isinstance(peers, yaml.SequenceNode) and peers.value:
        return added(text, peers, [entry])
    if peers_key is not None and peers is not None:
        return filled(text, in_flow(federation), peers_key, peers, [entry])
    if isinstance(federation, yaml.MappingNode) and federation.value:
        return added(text, federation, {PEERS: [entry]})
    return filled(text, in_flow(root), federation_key, federation, {PEERS: [entry]})


def in_flow(node: yaml.Node) -> bool:
    """Whether a node is written in braces or brackets."""
    return isinstance(node, yaml.CollectionNode) and bool(node.flow_style)


def pair_of(node: yaml.Node, key: str) -> tuple[yaml.Node, yaml.Node] | tuple[None, None]:
    """Return a key of a mapping and its value."""
    if isinstance(node, yaml.MappingNode):
        for found, value in node.value:
            if found.value == key:
                return found, value
    return None, None


def appended(text: str, content: dict[str, Any]) -> str:
    """Return a text with more keys at its end."""
    newline = newline_of(text)
    before = text.rstrip()
    gap = 2 * newline if before else ""
    return before + gap + newline.join(block(content, 0).splitlines()) + newline


def added(text: str, node: yaml.CollectionNode, content: Any) -> str:
    """Return a text in which a collection that is not empty has more."""
    if node.flow_style:
        at = node.end_mark.index - 1
        before = text[:at].rstrip()
        return f"{before}{'' if before.endswith(',') else ','} {flow(content)[1:-1]}{text[at:]}"
    at = end_of_line(text, end_of(text, node))
    return placed(text, at, block(content, node.start_mark.column))


def filled(text: str, within_flow: bool, key: yaml.Node, value: yaml.Node, content: Any) -> str:
    """Return a text in which a key has content instead of an empty value. Raises ConfigError."""
    before, after = around(text, value)
    if within_flow:
        return f"{before.rstrip()} {flow(content)}{after}"
    emptied = before.rstrip(" ") + after
    return placed(emptied, end_of_line(emptied, key.end_mark.index), block(content, key.start_mark.column + INDENT))


def around(text: str, node: yaml.Node) -> tuple[str, str]:
    """Return what is before an empty value and what is behind it. Raises ConfigError where comments are in it."""
    start, end = node.start_mark.index, node.end_mark.index
    if "#" in text[start:end]:
        raise ConfigError("comments would be lost")
    return text[:start], text[end:]


def placed(text: str, at: int, lines: str) -> str:
    """Return a text with more lines, after the line that ends at a place."""
    newline = newline_of(text)
    return text[:at] + newline + newline.join(lines.splitlines()) + (text[at:] or newline)


def end_of(text: str, node: yaml.Node) -> int:
    """Return where the last thing in a node ends; the end of a block is that of the comments behind it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return end_of(text, last[1] if isinstance(last, tuple) else last)
    end: int = node.end_mark.index
    return len(text[:end].rstrip()) if end > node.start_mark.index else end


def end_of_line(text: str, at: int) -> int:
    """Return where the line ends that a place is in."""
    end = text.find("\n", at)
    if end == -1:
        return len(text)
    return end - 1 if text[end - 1] == "\r" else end


def newline_of(text: str) -> str:
    """Return how a text ends its lines."""
    return "\r\n" if "\r\n" in text else "\n"


class Indented(yaml.SafeDumper):
    """Writes lists further in than what they belong to."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Go one level further in."""
        super().increase_indent(flow, indentless=False)


def block(content: Any, column: int) -> str:
    """Return YAML with a line for each key, all of it from a column on."""
    lines = dumped(content, in_flow=False).splitlines()
    return "\n".join(" " * column + line for line in lines)


def flow(content: Any) -> str:
    """Return YAML in braces and brackets, on one line."""
    return dumped(content, in_flow=True).strip()


def dumped(content: Any, *, in_flow: bool) -> str:
    """Return YAML in the order of the content, whose texts are not broken."""
    written: str = yaml.dump(
        content,
        Dumper=Indented,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
        indent=INDENT,
        default_flow_style=in_flow,
    )
    return written
