"""The parts that screens are made of. Texts of agents reach pages only as text, never as HTML or as code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from nicegui import ui
from nicegui.elements.mixins.text_element import TextElement

from console.texts import MISSING, fill_url, format_field, format_word, page_url

TONES: Final[Mapping[str, Sequence[str]]] = {
    "good": ("allowed", "granted", "success", "answered", "ok", "up", "accepted", "verified", "passed"),
    "bad": ("blocked", "denied", "failure", "failed", "critical", "unreachable", "down", "forged", "block"),
    "wait": ("pending", "approve", "needs approval", "high", "partial", "warn", "expired", "timed_out", "drift"),
}
"""Words by the colour of their badge; the text says the same, for readers who see no difference."""
TONE_OF_WORD: Final = {word: tone for tone, words in TONES.items() for word in words}
LONG: Final = 60
"""Characters of a fact that has a line of its own."""
Row = Mapping[str, Any]


def add_element(tag: str, text: str = "", classes: str = "", **attributes: Any) -> TextElement:
    """Add an HTML element with a text; underscores in names of attributes become hyphens."""
    element = TextElement(tag=tag, text=text)
    element.props.update({name.replace("_", "-"): value for name, value in attributes.items()})
    return element.classes(classes)


def add_group(tag: str = "div", classes: str = "", **attributes: Any) -> ui.element:
    """Add an HTML element for others to be placed in."""
    element = ui.element(tag)
    element.props.update({name.replace("_", "-"): value for name, value in attributes.items()})
    return element.classes(classes)


def add_text(text: str | None, classes: str = "") -> None:
    """Add a paragraph, unless there is no text."""
    if text:
        add_element("p", text, classes)


@contextmanager
def add_card(title: str = "", *, classes: str = "", hint: str = "") -> Iterator[None]:
    """Add a box with a title; the block adds its content."""
    with add_group("section", f"card {classes}"):
        if title or hint:
            with add_group("header"):
                add_element("h2", title)
                add_element("span", hint, "muted")
        yield


def add_badges(*words: str | None) -> None:
    """Add words in boxes whose colours repeat their meaning."""
    for word in filter(None, words):
        add_element("span", format_word(word), f"badge {TONE_OF_WORD.get(word, 'plain')}")


def add_link(text: str, url: str, classes: str = "") -> None:
    """Add a link to a page of the console. Never pass a URL of an agent."""
    assert url.startswith("/"), "links lead to pages of the console only"
    add_element("a", text or MISSING, classes, href=url)


def add_button(text: str, action: Callable[[], Any], *, icon: str | None = None, main: bool = False) -> ui.button:
    # Without a colour of Quasar's, which has no contrast in the dark.
    button = ui.button(text, on_click=action, icon=icon, color=None).props(
        "no-caps unelevated" if main else "no-caps outline"
    )
    return button.classes("main" if main else "other")


def add_line() -> ui.element:
    """Add a line of elements, which is wrapped on narrow screens."""
    return add_group("div", "row-line")


def show_empty(text: str, advice: str) -> None:
    """Say that there is nothing, and what to do next."""
    with add_group("div", "empty"):
        add_element("p", text, "empty-text")
        add_element("p", advice, "muted")


def parse_fields(spec: str) -> list[tuple[str, str]]:
    """Return names with fields: `Agent: name; Decided: date|day`."""
    return [(name, field) for name, field in (part.split(": ", 1) for part in spec.split("; "))]


def show_facts(answer: Row, spec: str) -> None:
    """Show names with fields of an answer; those without a value are left out."""
    with add_group("dl", "facts"):
        for name, field in parse_fields(spec):
            if text := format_field(answer, field):
                with add_group("div", "long" if len(text) > LONG else ""):
                    add_element("dt", name)
                    add_element("dd", text)


def show_number(value: str, name: str, url: str = "", tone: str = "") -> None:
    """Show a figure in a tile; it links to the page with the details."""
    with add_group("a", f"tile {tone}", href=url) if url else add_group("div", f"tile {tone}"):
        add_element("span", value, "figure")
        add_element("span", name)


def show_code(text: str | None, label: str) -> None:
    """Show a text as it is written. Keyboards can scroll it."""
    if text:
        add_element("pre", text, "code", tabindex="0", role="region", aria_label=label)


def show_table(
    label: str, rows: Iterable[Row], spec: str, buttons: Callable[[Row], None] | None = None, *, terse: bool = True
) -> None:
    """Show a table. On narrow screens it becomes a list, without the headings if `terse`.

    The spec has the columns, as those of `show_facts`; the format `badge` shows a badge, and `Agent: name > /x/{id}` a
    link. `buttons` adds a last cell.
    """
    columns = parse_fields(spec)
    box = add_group("div", "table-box", tabindex="0", role="region", aria_label=label)
    with box, add_group("table", "terse" if terse else ""):
        with add_group("thead"), add_group("tr"):
            for name, _ in [*columns, *([("Actions", "")] if buttons else [])]:
                add_element("th", name, scope="col")
        with add_group("tbody"):
            for row in rows:
                with add_group("tr"):
                    for name, field in columns:
                        add_cell(row, field, name)
                    if buttons:
                        with add_group("td", data_label="Actions"), add_group("div", "buttons"):
                            buttons(row)


def add_cell(row: Row, field: str, name: str) -> None:
    path, _, url = field.partition(" > ")
    if not url and not path.endswith("|badge"):
        # A text needs no element of its own; each costs 0.1 ms.
        add_element("td", format_field(row, path) or MISSING, data_label=name)
        return
    with add_group("td", data_label=name):
        if url:
            add_link(format_field(row, path), fill_url(url, row))
        else:
            add_badges(format_field(row, path.removesuffix("|badge")))


def show_pager(path: str, arguments: Mapping[str, str], next_token: str | None) -> None:
    """Link to the first and to the next page of a listing."""
    filters = {name: value for name, value in arguments.items() if name != "page"}
    with add_group("nav", "pager", aria_label="Pages"):
        if "page" in arguments:
            add_link("First page", page_url(path, **filters))
        if next_token:
            add_link("Next page", page_url(path, **filters, page=next_token))


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form, or a condition of a listing, which is an argument of its URL."""

    name: str
    label: str
    options: Sequence[str] | Mapping[Any, str] = ()
    """The accepted values; empty for a text."""
    value: Any = ""
    kind: str = "text"
    """`text`, `area`, `number`, `check`, or `choices` for several of the options."""

    def add_input(self) -> Any:
        """Add the input, whose `value` is what the person entered."""
        if self.kind == "check":
            return ui.checkbox(self.label, value=bool(self.value))
        if self.options:
            words = self.options
            shown = (
                words if isinstance(words, Mapping) else {each: format_word(each) if each else "Any" for each in words}
            )
            several = self.kind == "choices"
            return ui.select(dict(shown), label=self.label, value=self.value, multiple=several).props("outlined dense")
        if self.kind == "number":
            return ui.number(self.label, value=self.value).props("outlined dense")
        added = ui.textarea if self.kind == "area" else ui.input
        return added(self.label, value=self.value).props(
            "outlined dense" + (" autogrow" if self.kind == "area" else "")
        )


def read_value(field: Any) -> Any:
    """Return the value of an input, without surrounding spaces; None if it is empty."""
    value = field.value.strip() if isinstance(field.value, str) else field.value
    return None if value == "" else value


def show_filters(path: str, arguments: Mapping[str, str], fields: Sequence[Field]) -> None:
    """Show the conditions of a listing as a form, which opens the page with other arguments."""
    inputs: dict[str, Any] = {}

    def apply_filters() -> None:
        ui.navigate.to(page_url(path, **{name: read_value(field) for name, field in inputs.items()}))

    with add_group("div", "filters", role="search", aria_label="Filters"):
        for each in fields:
            options = ("", *each.options) if each.options else ()
            given = arguments.get(each.name, "")
            known = given if not options or given in options else ""
            inputs[each.name] = (
                Field(each.name, each.label, options, known).add_input().on("keydown.enter", apply_filters)
            )
        add_button("Apply", apply_filters, main=True)
        if any(arguments.get(each.name) for each in fields):
            add_link("Clear", path, "clear")


@contextmanager
def open_dialog(title: str) -> Iterator[ui.dialog]:
    """Add a dialog with a title, and open it; the block adds its content."""
    # Not within the part of the page that opens it, which may be built again meanwhile.
    with ui.context.client.content, ui.dialog() as dialog, ui.card().classes("dialog"):
        dialog.props.update({"aria-label": title})
        add_element("h2", title)
        yield dialog
    dialog.open()


def ask_person(
    title: str,
    fields: Sequence[Field],
    actions: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[Any]]],
    show: Callable[[], None] = lambda: None,
) -> None:
    """Ask for values in a dialog; each action is a button, and gets the values. `show` adds the first elements."""
    with open_dialog(title) as dialog:
        show()
        inputs = {each.name: each.add_input() for each in fields}

        async def run_action(action: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> None:
            dialog.close()
            await action({name: read_value(field) for name, field in inputs.items()})

        with add_group("div", "buttons"):
            for index, (name, action) in enumerate(actions.items()):
                add_button(name, partial(run_action, action), main=index == 0)
            add_button("Cancel", dialog.close)
