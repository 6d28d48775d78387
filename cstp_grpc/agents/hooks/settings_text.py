"""Adds hooks to the text of a JSON settings file and removes them, without changing any other byte.

Parsing finds the positions of values, and the text is changed only there. Removal also deletes the members that were
created for the hooks.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final, NamedTuple

from cstp_grpc.contract.errors import ConfigError

HOOKS: Final = "hooks"
"""The member of the settings with the hooks by event, and the member of a group with its hooks."""
WHITESPACE: Final = " \t\n\r"
"""The whitespace of JSON, RFC 8259, section 2."""
INDENT: Final = "  "
"""The default indentation of settings."""

IsOurs = Callable[[Any], bool]


class JsonItem(NamedTuple):
    """A value in the text; an object or array has its items, in their order."""

    start: int
    """The position of the item; for a member, the position of its key."""
    end: int
    value: Any
    key: str = ""
    """The key of a member."""
    opening: int = 0
    """The position of the value, after the key."""
    items: Sequence[JsonItem] = ()

    def member(self, key: str) -> JsonItem | None:
        return next((item for item in self.items if item.key == key), None) if isinstance(self.value, dict) else None


def install_hooks(text: str, wanted: Mapping[str, Any], is_ours: IsOurs) -> str:
    """Return the settings with the groups of hooks in `wanted`, by event, in place of those that are ours.

    A text that already has them is returned unchanged. Raises ConfigError.
    """
    by_event = itemgetter(0)
    present = sorted(installed_groups(parse_settings(text), is_ours), key=by_event)
    if present == sorted(wanted.items(), key=by_event):
        return text
    changed = remove_hooks(text, is_ours)
    for event, group in wanted.items():
        changed = add_group(changed, event, group)
    return changed


def remove_hooks(text: str, is_ours: IsOurs) -> str:
    """Return the settings without the hooks that are ours. Raises ConfigError."""
    spans = sorted(find_removals(parse_settings(text), is_ours), reverse=True)
    for start, end in spans:
        text = text[:start] + text[end:]
    return text


def is_made_by_install(text: str, empty: str, is_ours: IsOurs) -> bool:
    """Return whether settings equal those that `install_hooks` makes from empty ones. Raises ConfigError."""
    groups = dict(installed_groups(parse_settings(text), is_ours))
    return bool(groups) and install_hooks(empty, groups, is_ours) == text


def runs_command(hook: Any, words: Sequence[str]) -> bool:
    """Return whether a hook runs `cstp` with these words first, however the program is named."""
    command = hook.get("command") if isinstance(hook, dict) else None
    try:
        parts = shlex.split(command) if isinstance(command, str) else []
    except ValueError:
        return False
    begin = 3 if parts[1:3] == ["-m", "cstp_grpc"] else 1
    program = parts[:1] and parts[0].replace("\\", "/").rpartition("/")[2].removesuffix(".exe")
    return (begin == 3 or program == "cstp") and parts[begin : begin + len(words)] == list(words)


def installed_groups(root: JsonItem, is_ours: IsOurs) -> list[tuple[str, Any]]:
    return [
        (event.key, group.value)
        for event, group in iter_groups(root)
        if any(is_ours(hook.value) for hook in hooks_of_group(group))
    ]


def iter_groups(root: JsonItem) -> Iterator[tuple[JsonItem, JsonItem]]:
    hooks = root.member(HOOKS)
    for event in hooks.items if hooks else ():
        for group in event.items:
            yield event, group


def hooks_of_group(group: JsonItem) -> Sequence[JsonItem]:
    """Return the hooks of a group; for agents without groups, a group is a hook."""
    hooks = group.member(HOOKS)
    return hooks.items if hooks else (group,)


def find_removals(root: JsonItem, is_ours: IsOurs) -> Iterator[tuple[int, int]]:
    """Yield the parts of the text to delete, which do not overlap."""
    hooks = root.member(HOOKS)
    if hooks is None:
        return
    emptied_events = []
    for event in hooks.items:
        ours = [[hook for hook in hooks_of_group(group) if is_ours(hook.value)] for group in event.items]
        emptied = [
            group
            for group, found in zip(event.items, ours, strict=True)
            if found and len(found) == len(hooks_of_group(group))
        ]
        for group, found in zip(event.items, ours, strict=True):
            if found and group not in emptied:
                yield from spans_of_items(hooks_of_group(group), found)
        if emptied and len(emptied) == len(event.items):
            if was_empty(event):
                yield event.opening + 1, event.items[-1].end
            else:
                emptied_events.append(event)
        else:
            yield from spans_of_items(event.items, emptied)
    if emptied_events and len(emptied_events) == len(hooks.items) and was_empty(hooks):
        yield hooks.opening + 1, hooks.items[-1].end
    elif emptied_events and len(emptied_events) == len(hooks.items):
        yield from spans_of_items(root.items, [hooks], root.opening)
    else:
        yield from spans_of_items(hooks.items, emptied_events)


def was_empty(container: JsonItem) -> bool:
    """Return whether an object or array was empty before `insert_item` put the first item into it."""
    # A container that was created with its items has the same space at both ends.
    first, last = container.items[0], container.items[-1]
    return first.start > container.opening + 1 and last.end == container.end - 1


def spans_of_items(
    items: Sequence[JsonItem], removed: Sequence[JsonItem], opening: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield the parts of the text to delete for some items of an object or array that begins at `opening`.

    The commas between the remaining items stay correct, and the text between them is untouched.
    """
    kept_end = None
    for number, item in enumerate(items):
        if item not in removed:
            kept_end = item.end
        elif kept_end is not None:
            # With the comma before it.
            yield kept_end, item.end
            kept_end = item.end
        elif number + 1 < len(items):
            # Nothing is kept before it: with the comma after it.
            yield item.start, items[number + 1].start
        else:
            # The only item: with the space before it, which an insertion into an empty object adds.
            yield (opening + 1 if len(items) == 1 else item.start), item.end


def add_group(text: str, event: str, group: Any) -> str:
    """Return the settings with one more group of hooks at the end of an event's groups."""
    root = parse_settings(text)
    hooks = root.member(HOOKS)
    if hooks is None:
        return insert_item(text, root, 1, {event: [group]}, HOOKS)
    groups = hooks.member(event)
    if groups is None:
        return insert_item(text, hooks, 2, [group], event)
    return insert_item(text, groups, 3, group)


def insert_item(text: str, container: JsonItem, depth: int, value: Any, key: str | None = None) -> str:
    """Return the text with one more item at the end of an object or array, formatted like its other items."""
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = indent_of_text(text)
    written = json.dumps(value, indent=indent or None, ensure_ascii=False)
    if key is not None:
        written = f"{json.dumps(key)}: {written}"
    before = ""
    if indent:
        before = newline + indent * depth
        written = written.replace("\n", newline + indent * depth)
    else:
        before = " "
    if container.items:
        place = container.items[-1].end
        return f"{text[:place]},{before}{written}{text[place:]}"
    place = container.opening + 1
    return f"{text[:place]}{before}{written}{text[place:]}"


def indent_of_text(text: str) -> str:
    """Return the indentation of the first member, empty for a text in one line."""
    root = parse_settings(text)
    if not root.items:
        return INDENT
    space = text[root.opening + 1 : root.items[0].start]
    return space.rpartition("\n")[2] if "\n" in space else ""


def parse_settings(text: str) -> JsonItem:
    """Return the object in a text. Raises ConfigError for a text that is not a JSON object, and for invalid hooks."""
    try:
        json.loads(text)
        root = parse_value(text, skip_space(text, 0))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not JSON: {error}") from error
    if not isinstance(root.value, dict):
        raise ConfigError("is not a JSON object")
    hooks = root.member(HOOKS)
    if hooks is not None and not isinstance(hooks.value, dict):
        raise ConfigError("`hooks` is not an object")
    for event in hooks.items if hooks else ():
        if not isinstance(event.value, list):
            raise ConfigError(f"`hooks.{event.key}` is not a list")
    return root


def parse_value(text: str, start: int, key: str = "", opening: int | None = None) -> JsonItem:
    """Return the value at a position in valid JSON, with the positions of its items. Raises ValueError."""
    place = start if opening is None else opening
    if text[place] not in "{[":
        value, end = json.JSONDecoder().raw_decode(text, place)
        return JsonItem(start, end, value, key, place)
    closing = "}" if text[place] == "{" else "]"
    items: list[JsonItem] = []
    end = skip_space(text, place + 1)
    while text[end] != closing:
        item = parse_member(text, end) if closing == "}" else parse_value(text, end)
        items.append(item)
        end = skip_space(text, item.end)
        if text[end] == ",":
            end = skip_space(text, end + 1)
    if closing == "]":
        return JsonItem(start, end + 1, [item.value for item in items], key, place, items)
    members = {item.key: item.value for item in items}
    if len(members) < len(items):
        raise ValueError("an object has a key twice")
    return JsonItem(start, end + 1, members, key, place, items)


def parse_member(text: str, start: int) -> JsonItem:
    """Return the member at a position in valid JSON. Raises ValueError."""
    key, end = json.JSONDecoder().raw_decode(text, start)
    colon = skip_space(text, end)
    return parse_value(text, start, key, skip_space(text, colon + 1))


def skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in WHITESPACE:
        place += 1
    return place
