"""The texts of answers, for models and for the users of agents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cstp_grpc.agents.hooks.learning_blocks import FORM
from cstp_grpc.agents.hooks.server_calls import JsonObject
from cstp_grpc.agents.mcp_server.tool_texts import (
    describe_approval,
    describe_decision,
    describe_related,
    describe_violation,
    join_sections,
    render_guarded_code,
    render_items,
    render_verdict,
)
from cstp_grpc.common.quoted_text import OTHERS_NOTE, quote_answer, quote_name, quote_text
from cstp_grpc.common.unicode_text import replace_invisible

MAX_CONTEXT_CHARACTERS: Final = 9000
"""Maximum length of what a model is told at once. Chosen: Claude Code puts more than 10 000 into a file."""
CUT: Final = "\n… (cut)"
MAX_PRECEDENTS: Final = 3
"""How many similar decisions an announced call is answered with. Chosen: calls come often."""

UNKNOWN_ACTION: Final = "UNKNOWN_ACTION"
"""The code of the warning that an action states none of the inputs that guardrails read."""

NEEDS_PROJECT: Final = "CSTP filed no learnings: the hook is run without --project."

NAME_PROJECT: Final = (
    "CSTP told nothing of what must hold for the edited file: the server has several projects, and the hook is run"
    " without --project."
)

PACK_PREFIX: Final = "safety-"
"""What the names of the packaged packs begin with."""

INTRODUCTION: Final = (
    "CSTP judges the tool calls of this session by the organisation's guardrails. If a call is denied, do what the"
    " reason suggests or choose another way; do not reach the same by another tool. What must hold for a file comes"
    " with its first edit."
)


def describe_rules(names: Sequence[str]) -> str:
    """Return one line about the rulebooks in force, by their names, and how to try them; empty without any."""
    packs = [name.removeprefix(PACK_PREFIX) for name in names if name.startswith(PACK_PREFIX)]
    others = [name for name in names if not name.startswith(PACK_PREFIX)]
    if not packs:
        return f"Rules: {', '.join(others)}." if others else ""
    listed = f"{', '.join(others)} ({', '.join(packs)})" if others else ", ".join(packs)
    return f'Rules: {listed}. To try them: cstp check --command "rm -rf /"'


def introduce_session(remembered: str, rules: str, *, files_learnings: bool) -> str:
    """Return the text for a model at the start of its session.

    `remembered` is the Markdown of its session context, `rules` the line about the rulebooks in force.
    """
    how = (
        f"If you learned something that others would like to know, end your last message with such a block:\n{FORM}"
        if files_learnings
        else "If you learned something that others would like to know, file it with `cstp learn report`."
    )
    return cut_context(join_sections([INTRODUCTION, rules, replace_invisible(remembered).strip(), how]))


def describe_precedents(decisions: Sequence[JsonObject]) -> str:
    """Return similar decisions for a model; empty without any."""
    lines = map(describe_decision, quote_answer(decisions))
    return cut_context(render_items("Past decisions that resemble this", lines, note=OTHERS_NOTE, most=MAX_PRECEDENTS))


def describe_announcement(response: JsonObject) -> str:
    """Return the precedents and suggestions of an AnnounceIntentResponse as text for a model; empty without any."""
    response = quote_answer(response)
    related = map(describe_related, response["relatedIntents"])
    sections = [
        describe_warnings(response["guardrailStatus"]),
        render_guarded_code(response.get("codeContext")),
        describe_precedents(response["similarDecisions"][:MAX_PRECEDENTS]),
        render_items("What other agents are doing", related, note=OTHERS_NOTE),
    ]
    return cut_context(join_sections(sections))


def describe_contracts(texts: Iterable[str]) -> str:
    """Return the texts of nodes about files as one text for a model; empty without any."""
    said = list(dict.fromkeys(filter(None, map(replace_invisible, texts))))
    return cut_context(join_sections(["What must hold for what you just edited:", *said])) if said else ""


def describe_warnings(verdict: JsonObject) -> str:
    """Return the warnings of a verdict for a model; empty without any."""
    # That nothing is stated would be said of most tool calls: the table of tools states what there is.
    told = (
        describe_violation(each) for each in quote_answer(verdict["warnings"]) if each.get("code") != UNKNOWN_ACTION
    )
    return cut_context(render_items("Warnings", told))


def describe_denial(verdict: JsonObject) -> str:
    # What was assumed is most of what rules read: only what is missing decides.
    return cut_context(f"CSTP: {render_verdict({**quote_answer(verdict), 'assumed': []})}")


def describe_needed_approval(verdict: JsonObject) -> str:
    """Return the question that asks a user for an approval."""
    verdict = quote_answer(verdict)
    asked = render_items("What asks for it", map(describe_violation, verdict["violations"]))
    headline = "CSTP: the guardrails let a person decide on this."
    return cut_context(join_sections([headline, asked, describe_approval(verdict.get("approval"))]))


def describe_failure(why: str) -> str:
    return f"CSTP could not be asked: {quote_text(why)}"


def describe_filed(ids: Sequence[str]) -> str:
    return f"CSTP filed for review: {', '.join(map(quote_name, ids))}" if ids else ""


def describe_unfiled(problems: Iterable[str]) -> str:
    listed = render_items("CSTP did not file what you learned", map(quote_text, problems))
    return f"{listed}\n\nState only what was not filed again, in this form:\n{FORM}"


def cut_context(text: str) -> str:
    return text if len(text) <= MAX_CONTEXT_CHARACTERS else text[: MAX_CONTEXT_CHARACTERS - len(CUT)] + CUT
