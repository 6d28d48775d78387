"""Where sections begin and end: what reads like a heading and is none, and not a byte lost."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from cstp_grpc.modules.intent_layer.node_document import NodeDocument, parse_node
from tests.example_counts import examples
from tests.named_case import named_case

COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
many = settings(max_examples=examples(600), deadline=None)

LINES = [
    "",
    "  ",
    "## Contracts",
    "##  pitfalls  ##",
    "##Checks",
    "##",
    " ## Patterns",
    "    ## indented",
    "\t## tabbed",
    "# Title",
    "### Sub",
    "####### seven",
    "text",
    "  text",
    "    text",
    "a > b",
    "- item",
    "- **bold** item",
    "* * *",
    "-",
    "+ a > b",
    "  - inner",
    "  ## in the item",
    "- ## in an item",
    "- ```",
    "- <div>",
    "- <!--",
    "1. one",
    "7. seven",
    "---",
    "- - -",
    "===",
    "  ---",
    "=",
    "> quote",
    "> ## quoted",
    "> ```",
    ">",
    "```",
    "```python",
    "``` a`b",
    "````",
    "  ```",
    "    ```",
    "~~~",
    "~~~ `x`",
    "<div>",
    "</div>",
    "<span>",
    "<!--",
    "-->",
    "<!-- one line -->",
    "<?php",
    "?>",
    "<!X",
    "<![CDATA[",
    "]]>",
    "<pre>",
    "</pre>",
    "[a]: b",
    "[a]:",
    "'title",
    "title'",
    "| a | b |",
    "|---|---|",
    "key: value",
    "\x00",
    "\x0c",
    "\u2028## no line",
]
ENDS = ["\n", "\n", "\n", "\r\n", "\r"]
written = st.lists(st.tuples(st.sampled_from(LINES), st.sampled_from(ENDS)), max_size=24).map(
    lambda lines: "".join(line + end for line, end in lines)
)
unended = st.tuples(st.sampled_from(["", "\ufeff"]), written, st.sampled_from(LINES)).map("".join)
texts = unended | st.text(st.sampled_from("#- \t\n\r`~<>!ab=*:[]\ufeff"), max_size=60) | st.text()


def names(text: str) -> list[str]:
    return [span.name for span in parse_node(text, "AGENTS.md").spans]


def bodies(text: str) -> dict[str, str]:
    return {section.name: section.text for section in parse_node(text, "AGENTS.md").sections()}


def put_together(document: NodeDocument) -> str:
    return document.preamble + "".join(document.source(span) for span in document.spans)


def plain_headings(text: str, tag: str = "h2") -> list[tuple[str, int]]:
    """The headings of a level that markdown-it finds in the whole text, each with its line from 1."""
    tokens = MarkdownIt("commonmark").parse(text)
    return [
        (" ".join(tokens[number + 1].content.split()), token.map[0] + 1)
        for number, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == tag and token.level == 0 and token.map
    ]


def visible(text: str) -> list[str]:
    """What markdown-it shows of a text, block by block; a title is `title`, comments and rules are nothing."""
    shown = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.level or token.nesting < 0 or token.type == "hr":
            continue
        if token.type == "html_block" and not COMMENT.sub("", token.content).strip(" \t\n"):
            continue
        shown.append("title" if token.type == "heading_open" and token.tag == "h1" else token.type)
    return shown


@many
@given(texts)
def test_the_sections_put_together_are_the_text(text: str) -> None:
    document = parse_node(text, "AGENTS.md")
    assert put_together(document) == text
    for span in document.spans:
        assert span.start_offset < span.body_offset <= span.end_offset
        assert document.body(span) == text[span.body_offset : span.end_offset]


@settings(max_examples=examples(3000), deadline=None)
@given(written | unended.map(lambda text: text.lstrip("\ufeff")))
def test_headings_are_those_that_the_parser_finds_in_the_whole_text(text: str) -> None:
    found = [(span.name, span.heading_line) for span in parse_node(f"\n{text}", "AGENTS.md").spans]
    assert found == plain_headings(f"\n{text}")


@settings(max_examples=examples(3000), deadline=None)
@given(written | unended.map(lambda text: text.lstrip("\ufeff")))
def test_subsections_are_the_headings_of_level_3_that_the_parser_finds(text: str) -> None:
    document = parse_node(f"\n{text}", "AGENTS.md")
    introduction = [document.introduction] if document.introduction else []
    found = [
        (below.name, below.heading_line) for span in (*introduction, *document.spans) for below in span.subsections
    ]
    assert found == plain_headings(f"\n{text}", "h3")
    for section in document.sections():
        for below in section.subsections:
            assert below.text in section.text


@settings(max_examples=examples(3000), deadline=None)
@given(written)
def test_the_introduction_is_all_that_the_preamble_says_but_for_its_title(text: str) -> None:
    document = parse_node(f"\n{text}", "AGENTS.md")
    span = document.introduction
    start = span.start_offset if span else len(document.preamble)
    assert visible(document.text[:start]) in ([], ["title"])
    if span:
        assert visible(document.text[span.end_offset : len(document.preamble)]) == []
        assert document.sections()[0].text
        assert visible(document.body(span)) or "]:" in document.body(span)


@many
@given(st.sampled_from(["```", "~~~", "````", "~~~~~"]), st.lists(st.sampled_from(LINES), max_size=8), st.booleans())
def test_a_fence_is_never_split(fence: str, lines: list[str], closed: bool) -> None:
    inside = [line for line in lines if not line.strip().startswith(fence)]
    code = "\n".join([fence, *inside, *([fence] if closed else [])])
    document = parse_node(f"## Contracts\n\n{code}\n", "AGENTS.md")
    assert [span.name for span in document.spans] == ["Contracts"]
    assert document.body(document.spans[0]) == f"\n{code}\n"


@many
@given(texts)
def test_a_section_to_read_leaves_nothing_open(text: str) -> None:
    for section in parse_node(text, "AGENTS.md").sections():
        assert "\r" not in section.text
        assert names(f"## Before\n\n{section.text}\n\n## After\n")[-1:] == ["After"]


def test_the_text_before_the_first_section_is_one_of_its_own() -> None:
    for preamble, text, line in [
        ("# Shop\n\nNever edit by hand.\n\n", "Never edit by hand.", 3),
        ("Never edit by hand.\n", "Never edit by hand.", 1),
        ("Shop\n====\n\nNever edit\nby hand.\n", "Never edit\nby hand.", 4),
        ("\ufeff# Shop\r\n\r\nOne\r\n\r\nTwo\r\n", "One\n\nTwo", 3),
        ("---\nname: x\n---\n<!-- lint -->\n# Shop\n\nOne\n", "One", 7),
        ("<!--\nlicence\n-->\n\n# Shop\n\n---\n\nOne\n\n***\n\n", "One", 9),
        ("# Shop\n# More\n\nOne\n", "# More\n\nOne", 2),
        ("# Shop\n\n### Rules\n\nOne\n", "### Rules\n\nOne", 3),
        ("# Shop\n\nOne\n\n<!-- two -->\n", "One\n\n<!-- two -->", 3),
        ("# Shop\n\n<!-- one --> two\n", "<!-- one --> two", 3),
        ("# Shop\n\n```\n## no\n```\n", "```\n## no\n```", 3),
        ("# Shop\n\n    code\n", "    code", 3),
        ("# Shop\n\n[a]: x\n\nSee [a]\n", "[a]: x\n\nSee [a]", 3),
        ("# Shop\n\n[a]: never edit it\n\n", "[a]: never edit it", 3),
    ]:
        with named_case(preamble, text, line):
            introduction, contracts = parse_node(f"{preamble}## Contracts\n\na\n", "AGENTS.md").sections()
            assert (introduction.name, introduction.text, introduction.line) == ("Introduction", text, line)
            assert (contracts.name, contracts.text) == ("Contracts", "a")


@pytest.mark.parametrize(
    "preamble",
    [
        "",
        "\n\n",
        "# Shop\n\n",
        "Shop\nof ours\n===\n",
        "---\nname: x\n---\n\n# Shop\n",
        "<!-- a --><!-- b -->\n# Shop\n<!--\nc\n-->\n\n---\n",
        "# Shop\n\n[a]: b\n[c]: d\n\n",
    ],
)
def test_a_title_comments_and_rules_are_no_introduction(preamble: str) -> None:
    assert names(f"{preamble}## Contracts\n") == ["Contracts"]
    assert [section.name for section in parse_node(f"{preamble}## Contracts\n", "AGENTS.md").sections()] == [
        "Contracts"
    ]


def test_a_text_without_sections_is_all_introduction() -> None:
    assert bodies("# Shop\n\nOne\n\n# Two\n\n```\nthree\n---\n") == {
        "Introduction": "One\n\n# Two\n\n```\nthree\n---\n```"
    }
    assert bodies("# Shop\n\n<!-- open\n\n## no\n") == {}


def test_subsections_end_at_the_next_heading_of_a_level_up_to_3() -> None:
    text = "### Zero\n0\n## A\n### One\n1\n#### Deep\n2\n### Two\n3\n\n# Title\n4\n### Three\n```\n### no\n"
    sections = parse_node(text, "AGENTS.md").sections()
    assert [[(below.name, below.text, below.line) for below in section.subsections] for section in sections] == [
        [("Zero", "0", 1)],
        [("One", "1\n#### Deep\n2", 4), ("Two", "3", 8), ("Three", "```\n### no\n```", 13)],
    ]


def test_headings_are_read_in_any_form() -> None:
    text = "## Purpose\na\n##\tEntry   Points ##\nb\n\nContracts\n---------\nc\n   ## Pitfalls\nd\n"
    assert bodies(text) == {"Purpose": "a", "Entry Points": "b", "Contracts": "c", "Pitfalls": "d"}


def test_what_only_looks_like_a_heading_is_none() -> None:
    for hidden in [
        "```\n## no\n```",
        "~~~ text\n## no\n~~~",
        "````\n```\n## no\n````",
        "    ## no",
        "\t## no",
        "> ## no",
        "- ## no",
        "- item\n\n  ## no",
        "1. item\n   ## no",
        "<!--\n## no\n-->",
        "<!--\n\n## no\n\n-->",
        "<div>\n## no\n</div>",
        "<pre>\n\n## no\n\n</pre>",
        "\\## no",
        "##no",
        "### no",
        "# no",
        "- ```\n  ## no\n  ```",
    ]:
        with named_case(hidden):
            assert bodies(f"## Contracts\n\n{hidden}\n\n## Pitfalls\n\nb\n") == {"Contracts": hidden, "Pitfalls": "b"}


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_offsets_hold_for_every_line_end(end: str) -> None:
    text = end.join(["# T", "", "## A", "", "one", "", "B", "---", "two"])
    document = parse_node(text, "AGENTS.md")
    assert [(span.name, span.heading_line, span.body_line) for span in document.spans] == [("A", 3, 4), ("B", 7, 9)]
    assert document.preamble == f"# T{end}{end}"
    assert document.body(document.spans[0]) == f"{end}one{end}{end}"
    assert document.body(document.spans[1]) == "two"
    assert [section.text for section in document.sections()] == ["one", "two"]


def test_a_byte_order_mark_hides_no_heading() -> None:
    document = parse_node("\ufeff## A\nx", "AGENTS.md")
    assert (document.preamble, document.source(document.spans[0])) == ("\ufeff", "## A\nx")


@pytest.mark.parametrize("text", ["---\nname: x\n---\n## A\n", "---\nname: x\n## no\ntags:\n  - b\n...\n\n## A\n"])
def test_front_matter_belongs_to_the_preamble(text: str) -> None:
    assert names(text) == ["A"]
    assert names(f"\ufeff{text}") == ["A"]
    assert names(text.replace("\n", "\r\n")) == ["A"]
    assert parse_node(text, "AGENTS.md").preamble == text[: text.index("## A")]


def test_a_rule_at_the_top_is_no_front_matter() -> None:
    assert names("---\n\n## A\n\nkey: value\n\n---\n\n## B\n") == ["A", "B"]
    assert names("---\nkey: value\n\n## A\n") == ["A"]


def test_an_empty_text_has_no_section() -> None:
    assert parse_node("", "AGENTS.md").spans == ()
    assert parse_node("only\ntext", "AGENTS.md").preamble == "only\ntext"


def test_an_empty_section_is_one() -> None:
    assert bodies("## A\n## B") == {"A": "", "B": ""}


def test_duplicates_are_found_in_any_case() -> None:
    document = parse_node("## Entry Points\na\n## Other\nb\n## entry  points\nc\n", "AGENTS.md")
    assert [span.heading_line for span in document.find("ENTRY points")] == [1, 5]


def test_a_text_keeps_its_indentation_and_inner_blank_lines() -> None:
    assert bodies("## A\n\n \n    code\n\n\ntext\n\n\n") == {"A": "    code\n\n\ntext"}


def test_what_a_file_leaves_open_is_closed_for_readers() -> None:
    for open_, closed in [
        ("```\nx", "```\nx\n```"),
        ("~~~~\nx\n~~~", "~~~~\nx\n~~~\n~~~~"),
        ("<!-- x\n\ny", "<!-- x\n\ny\n-->"),
        ("<PRE>\n\ny", "<PRE>\n\ny\n</PRE>"),
        ("<?x\n\ny", "<?x\n\ny\n?>"),
        ("<![CDATA[\ny", "<![CDATA[\ny\n]]>"),
        ("```\nx\n```", "```\nx\n```"),
        ("<!-- x -->", "<!-- x -->"),
        ("<div>\ny", "<div>\ny"),
    ]:
        with named_case(open_, closed):
            assert bodies(f"## A\n\n{open_}\n") == {"A": closed}
            assert put_together(parse_node(f"## A\n\n{open_}\n", "AGENTS.md")) == f"## A\n\n{open_}\n"


def test_deep_nesting_hides_nothing_behind_it() -> None:
    assert names(f"{'- ' * 400}x\n\n## A\n\n{'> ' * 400}x\n\n## B\n") == ["A", "B"]
