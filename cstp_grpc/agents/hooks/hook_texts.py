"""The texts of answers, for models and for the users of agents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from cstp_grpc.agents.hooks.server_calls import JsonObject
from cstp_grpc.agents.mcp_server import tool_texts
from cstp_grpc.common.quoted_text import OTHERS_NOTE, quote_answer, quote_name, quote_text
from cstp_grpc.common.unicode_text import replace_invisible

MAX_CONTEXT_CHARACTERS: Final = 9000
"""Maximum length of the context for a model. Chosen: Claude Code writes more than 10 000 characters to a file."""
CUT: Final = "\n… (cut)"
MAX_PRECEDENTS: Final = 3
"""Maximum number of similar decisions in the answer to an announced call. Chosen: few, since calls are frequent."""

FORM: Final = """```cstp-learning
type: pitfall
path: src/api/handlers.ts
title: One line that says it
detail: What happens and what to do instead, in full.
```"""
"""The form of a block, for the model."""

UNKNOWN_ACTION: Final = "UNKNOWN_ACTION"
"""The code of the warning that an action states no input that guardrails read."""

NEEDS_PROJECT: Final = "CSTP filed no learnings: the hook is run without --project."

NAME_PROJECT: Final = (
    "CSTP gave no contracts for the edited file: the server has several projects, and the hook is run"
    " without --project."
)

PACK_PREFIX: Final = "safety-"
"""The prefix of the names of the packaged packs."""

INTRODUCTION: Final = (
    "CSTP checks the tool calls of this session against the organisation's guardrails. If a call is denied, do what"
    " the reason suggests or choose another way; do not reach the same result with another tool. The contracts of a"
    " file come with its first edit."
)


def describe_rules(names: Sequence[str]) -> str:
    """Return one line about the rulebooks in force, by their names, and how to try them; empty without rulebooks."""
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
    return cut_context(tool_texts.join_sections([INTRODUCTION, rules, replace_invisible(remembered).strip(), how]))


def describe_precedents(decisions: Sequence[JsonObject]) -> str:
    """Return similar decisions for a model; empty without decisions."""
    lines = map(tool_texts.describe_decision, quote_answer(decisions))
    return cut_context(
        tool_texts.render_items("Past decisions that resemble this", lines, note=OTHERS_NOTE, most=MAX_PRECEDENTS)
    )


def describe_announcement(response: JsonObject) -> str:
    """Return the precedents and suggestions of an AnnounceIntentResponse for a model; may be empty."""
    response = quote_answer(response)
    related = map(tool_texts.describe_related, response["relatedIntents"])
    sections = [
        describe_warnings(response["guardrailStatus"]),
        tool_texts.render_guarded_code(response.get("codeContext")),
        describe_precedents(response["similarDecisions"][:MAX_PRECEDENTS]),
        tool_texts.render_items("Intents of other agents", related, note=OTHERS_NOTE),
    ]
    return cut_context(tool_texts.join_sections(sections))


def describe_contracts(texts: Iterable[str]) -> str:
    """Return the texts of nodes about files as one text for a model; empty without texts."""
    said = list(dict.fromkeys(filter(None, map(replace_invisible, texts))))
    return cut_context(tool_texts.join_sections(["Contracts of the code that you just edited:", *said])) if said else ""


def describe_warnings(verdict: JsonObject) -> str:
    """Return the warnings of a verdict for a model; empty without warnings."""
    # Left out, since it would apply to most tool calls: the table of tools states all inputs that there are.
    told = (
        tool_texts.describe_violation(each)
        for each in quote_answer(verdict["warnings"])
        if each.get("code") != UNKNOWN_ACTION
    )
    return cut_context(tool_texts.render_items("Warnings", told))


def describe_denial(verdict: JsonObject) -> str:
    # Assumed inputs are left out: they are most inputs of the rules, and only missing ones change a verdict.
    return cut_context(f"CSTP: {tool_texts.render_verdict({**quote_answer(verdict), 'assumed': []})}")


def describe_needed_approval(verdict: JsonObject) -> str:
    """Return the question that asks a user for an approval."""
    verdict = quote_answer(verdict)
    asked = tool_texts.render_items("Required by", map(tool_texts.describe_violation, verdict["violations"]))
    headline = "CSTP: the guardrails let a person decide on this."
    return cut_context(
        tool_texts.join_sections([headline, asked, tool_texts.describe_approval(verdict.get("approval"))])
    )


def describe_failure(why: str) -> str:
    return f"CSTP could not be asked: {quote_text(why)}"


def describe_filed(ids: Sequence[str]) -> str:
    return f"CSTP filed for review: {', '.join(map(quote_name, ids))}" if ids else ""


def describe_unfiled(problems: Iterable[str]) -> str:
    listed = tool_texts.render_items("CSTP did not file what you learned", map(quote_text, problems))
    return f"{listed}\n\nState only what was not filed again, in this form:\n{FORM}"


def cut_context(text: str) -> str:
    return text if len(text) <= MAX_CONTEXT_CHARACTERS else text[: MAX_CONTEXT_CHARACTERS - len(CUT)] + CUT
