"""Inputs of every kind for property tests: mostly wrong, often nearly right."""

from __future__ import annotations

import json

from hypothesis import strategies as st

MARKDOWN_PARTS = """
#_|##_Status~|##_Context~|##_Decision~|##_Consequences~|##_Links~|Date:_|Status:_|Accepted|superseded_by_|partially_
supersedes:~|[a](0001-a.md)|[b][c]|[c]:_0002.md~|ADR-0001|---~|status:_|date:_|tags:_[|]|{|}|-_|*_|1._|```~|<!--|-->|<br>
~|~~|_|:|`|**|&a_|*a|2017-09-04|04/09/2017|é
"""
YAML_PARTS = '-_|title:_|id:_|~|__|a|1|[|]|{|}|&a|*a|"|decisions:~|---~|<<:_|!!str_'
CONTROLS = ("\r\n", "\r", "\t", "|", "\ufeff", "\u2028", "\x0b", "\x85", "\U0001f600", "\0")


def parts(listed: str) -> st.SearchStrategy[str]:
    """One of the parts in a list, where `_` stands for a space and `~` for a line feed."""
    return st.sampled_from(
        [part.replace("_", " ").replace("~", "\n") for part in listed.strip().replace("\n", "|").split("|")]
    )


markdown = st.lists(parts(MARKDOWN_PARTS) | st.sampled_from(CONTROLS) | st.text(max_size=5), max_size=40).map("".join)
yaml = st.lists(parts(YAML_PARTS) | st.sampled_from(CONTROLS) | st.text(max_size=3), max_size=30).map("".join)

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["low", "decided"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
names = parts("id|title|context|stakes|status|confidence|date|tags|links|reasons|x")
objects = st.fixed_dictionaries({"title": st.text(max_size=9) | values}) | st.dictionaries(names, values, max_size=5)
line_bytes = (
    objects.map(json.dumps).map(str.encode)
    | st.binary(max_size=20).map(lambda data: data.replace(b"\n", b""))
    | st.sampled_from([b"", b" ", b"\t\r"])
)
lines = st.lists(line_bytes, max_size=8)
