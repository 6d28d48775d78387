"""The frame of every page: navigation, the person who is signed in, light and dark."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from nicegui import ui

from console import widgets
from console.sessions import ConsoleSession
from console.view import View

TOGGLE: Final = "() => document.getElementById('side').classList.toggle('open')"
COLOURS: Final = {None: "as the system", True: "dark", False: "light"}


@dataclass(frozen=True, slots=True)
class Screen:
    """A page of the console."""

    path: str
    """Its path; parts such as `{id}` are arguments of the view."""
    title: str
    build: Callable[[View], Awaitable[None]]
    """Builds the content of the page. Raises CstpError."""
    icon: str = ""
    """Its icon in the navigation; empty for a page that others link to."""
    methods: Sequence[str] = ()
    """The methods without which there is nothing to show."""
    group: str = ""
    """The heading in the navigation under which it is listed."""

    @property
    def section(self) -> str:
        return self.path.split("/")[1]


async def show_screen(screen: Screen, screens: Sequence[Screen], view: View) -> None:
    """Build a page: the frame, and the content of the screen within it."""
    ui.dark_mode(view.session.dark)
    ui.query(".nicegui-content").classes("page")
    show_header(view.session)
    allowed = [each for each in screens if each.icon and view.may_call(*each.methods)]
    show_navigation(screen, allowed)
    # Within the element `main` of NiceGUI's page.
    main = widgets.add_group("div", "content", tabindex="-1")
    ui.skip_link(target=main)
    with main:
        with widgets.add_line():
            widgets.add_element("h1", screen.title)
            parent = next((each for each in allowed if each.section == screen.section), screen)
            if parent is not screen:
                widgets.add_link(f"All of {parent.title}", parent.path)
        if view.may_call(*screen.methods):
            await view.show_part(lambda: screen.build(view))
        else:
            advice = "Ask an administrator for a token with the permission, and sign in with it."
            widgets.show_empty("Your permissions do not include this page.", advice)


def show_header(session: ConsoleSession) -> None:
    """Add the bar at the top."""

    def switch_colours() -> None:
        session.dark = {None: True, True: False, False: None}[session.dark]
        ui.navigate.reload()

    with widgets.add_group("header", "top"):
        add_icon_button("menu", "Navigation").classes("only-narrow").on("click", js_handler=TOGGLE)
        with widgets.add_group("a", "brand", href="/"):
            widgets.add_element("span", "CSTP")
            widgets.add_element("span", "Console", "muted")
        ui.space()
        add_icon_button("contrast", f"Colours: {COLOURS[session.dark]}").on("click", switch_colours)
        widgets.add_element("span", session.agent, "who")
        with widgets.add_group("form", method="post", action="/sign-out"):
            widgets.add_element("button", "Sign out", "sign-out", type="submit")


def add_icon_button(icon: str, name: str) -> ui.button:
    button = ui.button(icon=icon, color=None).props("flat round dense")
    button.props.update({"aria-label": name, "title": name})
    return button


def show_navigation(current: Screen, screens: Sequence[Screen]) -> None:
    """Add the links to screens."""
    group = ""
    with widgets.add_group("nav", "side", id="side", aria_label="Screens"):
        for screen in screens:
            if screen.group != group:
                group = screen.group
                widgets.add_element("div", group, "nav-group")
            here = current.section == screen.section
            marks = {"aria_current": "page"} if here else {}
            with widgets.add_group("a", "nav-link here" if here else "nav-link", href=screen.path, **marks):
                ui.icon(screen.icon).props("aria-hidden=true")
                widgets.add_element("span", screen.title)
