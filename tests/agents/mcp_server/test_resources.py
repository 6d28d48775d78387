"""What hosts read, complete and insert: resources, prompts and the completion of their arguments."""

from __future__ import annotations

import json
from typing import Any

import mcp_types
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError

from tests.agents.mcp_server.hosts import LEGACY, MODERN, Host

NODE = "cstp://projects/shop/nodes/AGENTS.md"
NODE_TEMPLATE = "cstp://projects/{project}/nodes/{+path}"


async def read_text(client: Client, uri: str) -> str:
    """Return the text of a resource."""
    [content] = (await client.read_resource(uri)).contents
    assert isinstance(content, mcp_types.TextResourceContents)
    assert content.uri == uri
    return content.text


def test_the_rulebook_says_which_facts_it_reads(host: Host) -> None:
    inputs = json.loads(host.run(lambda client: read_text(client, "cstp://rulebook/inputs")))["inputs"]
    assert [each["name"] for each in inputs] == ["affectsProduction", "codeReviewed", "window"]
    rules = json.loads(host.run(lambda client: read_text(client, "cstp://rulebook/guardrails")))["guardrails"]
    assert [each["id"] for each in rules] == ["no-review", "no-weekend", "no-forced-push", "ask-about-payments"]


def test_decisions_are_listed_and_read_as_the_caller_may(host: Host) -> None:
    async def use(client: Client) -> dict[str, Any]:
        recorded = await client.call_tool("record_decision", {"title": "Keep it private", "context": "why"})
        identifier = recorded.structured_content["id"]
        listed = await client.list_resources()
        assert f"cstp://decisions/{identifier}" in {each.uri for each in listed.resources}
        decision: dict[str, Any] = json.loads(await read_text(client, f"cstp://decisions/{identifier}"))
        return decision

    decision = host.run(use)
    assert decision["context"] == "why"

    async def look(client: Client) -> int:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(f"cstp://decisions/{decision['id']}")
        return refused.value.error.code

    assert host.run(look, "bob") == {LEGACY: -32002, MODERN: -32602}[host.mode]


def test_all_decisions_are_listed_page_by_page(host: Host) -> None:
    async def use(client: Client) -> list[str]:
        for number in range(52):
            await client.call_tool("record_decision", {"title": f"Decision {number}"})
        page = await client.list_resources()
        found = [each.uri for each in page.resources]
        while page.next_cursor:
            page = await client.list_resources(cursor=page.next_cursor)
            found += [each.uri for each in page.resources]
        return found

    found = host.run(use)
    assert len(found) == len(set(found))
    assert len([uri for uri in found if uri.startswith("cstp://decisions/")]) >= 52
    assert [uri for uri in found if uri.startswith("cstp://rulebook/")] == [
        "cstp://rulebook/inputs",
        "cstp://rulebook/guardrails",
    ]


def test_a_node_is_read_as_markdown(host: Host) -> None:
    text = host.run(lambda client: read_text(client, NODE))
    assert "## Contracts\n\n- Money is in cents." in text


@pytest.mark.parametrize(
    "uri",
    ["cstp://decisions/none", "cstp://projects/none/nodes/AGENTS.md", "cstp://projects/shop/nodes/../x", "file:///etc"],
)
def test_what_does_not_exist_is_not_found(host: Host, uri: str) -> None:
    async def use(client: Client) -> mcp_types.ErrorData:
        with pytest.raises(MCPError) as refused:
            await client.read_resource(uri)
        return refused.value.error

    error = host.run(use)
    assert error.code == {LEGACY: -32002, MODERN: -32602}[host.mode]
    assert error.data == {"uri": uri}


def test_templates_name_what_can_be_read(host: Host) -> None:
    listed = host.run(lambda client: client.list_resource_templates())
    assert [each.uri_template for each in listed.resource_templates] == ["cstp://decisions/{id}", NODE_TEMPLATE]


@pytest.mark.parametrize(
    ("reference", "argument", "given", "expected"),
    [
        ((NODE_TEMPLATE, "path"), "AG", {"project": "shop"}, ["AGENTS.md"]),
        ((NODE_TEMPLATE, "path"), "zz", {"project": "shop"}, []),
        ((NODE_TEMPLATE, "project"), "s", None, []),
        (("before_a_risky_change", "stakes"), "", None, ["low", "medium", "high", "critical"]),
        (("before_a_risky_change", "stakes"), "h", None, ["high"]),
        (("retrospective", "category"), "data", None, ["database"]),
    ],
)
def test_arguments_are_completed_from_what_there_is(
    host: Host, reference: tuple[str, str], argument: str, given: dict[str, str] | None, expected: list[str]
) -> None:
    name, variable = reference
    ref: Any = mcp_types.ResourceTemplateReference(uri=name) if "://" in name else mcp_types.PromptReference(name=name)
    result = host.run(lambda client: client.complete(ref, {"name": variable, "value": argument}, given))
    assert result.completion.values == expected


def test_a_decision_is_completed_by_the_words_of_its_title(host: Host) -> None:
    ref = mcp_types.ResourceTemplateReference(uri="cstp://decisions/{id}")
    result = host.run(lambda client: client.complete(ref, {"name": "id", "value": "orders table"}))
    assert len(result.completion.values) == 1


def prompt_text(result: mcp_types.GetPromptResult) -> str:
    [message] = result.messages
    assert isinstance(message.content, mcp_types.TextContent)
    return message.content.text


def test_a_risky_change_begins_with_looking(host: Host) -> None:
    arguments = {"change": "Drop the table", "stakes": "critical"}
    text = prompt_text(host.run(lambda client: client.get_prompt("before_a_risky_change", arguments)))
    assert "I want you to do this: Drop the table" in text
    assert "1. Call look_before_acting with the intent in your own words, stakes `critical`" in text


def test_a_retrospective_names_the_reviews_that_are_due(host: Host) -> None:
    async def use(client: Client) -> mcp_types.GetPromptResult:
        due = {"title": "Try the cache", "category": "caching", "reviewBy": "2020-01-01T00:00:00Z"}
        await client.call_tool("record_decision", due)
        return await client.get_prompt("retrospective", {"category": "caching"})

    text = prompt_text(host.run(use))
    assert "Let us look back on category caching." in text
    assert '- "Try the cache" (outcome unknown, caching' in text


@pytest.mark.parametrize(("name", "arguments"), [("none", {}), ("before_a_risky_change", {})])
def test_a_prompt_that_cannot_be_written_is_an_error_of_the_protocol(
    host: Host, name: str, arguments: dict[str, str]
) -> None:
    async def use(client: Client) -> int:
        with pytest.raises(MCPError) as refused:
            await client.get_prompt(name, arguments)
        return refused.value.error.code

    assert host.run(use) == mcp_types.INVALID_PARAMS


def test_what_is_the_same_for_all_may_be_cached_and_what_is_the_callers_may_not(cstp_server: Any) -> None:
    async def use(client: Client) -> list[tuple[int, str]]:
        results: tuple[mcp_types.CacheableResult, ...] = (
            await client.list_tools(),
            await client.list_prompts(),
            await client.list_resources(),
        )
        return [(result.ttl_ms, result.cache_scope) for result in results]

    hints = Host(cstp_server.target, "memory", MODERN).run(use)
    assert hints == [(3_600_000, "public"), (3_600_000, "public"), (0, "private")]
