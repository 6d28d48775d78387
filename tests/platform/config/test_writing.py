"""Adding a peer to a configuration file: it is there, and everything else is as it was."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.platform.config import ConfigError, add_peer, replace_file
from tests.named_case import named_case

FILE = Path("cstp.yaml")
ENTRY = {"name": "b", "url": "https://b.example.com/card.json", "token": "${CSTP_TOKEN_B}", "role": "required"}
LONG = {**ENTRY, "categories": ["deployment", "a, b: [c]"]}

BESIDE_OTHERS = """\
# Ours.
agent: {name: "a"}   # in one line

federation:
  max_hops:   2
  peers:
    - name: c      # the oldest
      url: grpc://c:1

      token: ${C}  # of c

    # What follows is asked last.
    - {name: d, url: "grpc://d:1"}  # of d

  # Sums it up.
  timeout_seconds: 3

# How much is told
logging:
    level: debug
"""


def test_an_entry_comes_after_the_others_and_all_else_stays() -> None:
    written = add_peer(BESIDE_OTHERS, FILE, ENTRY)
    lines = [
        "    - name: b",
        "      url: https://b.example.com/card.json",
        "      token: ${CSTP_TOKEN_B}",
        "      role: required",
    ]
    before = BESIDE_OTHERS.splitlines()
    at = before.index('    - {name: d, url: "grpc://d:1"}  # of d') + 1
    assert written.splitlines() == before[:at] + lines + before[at:]


def test_each_layout_is_kept() -> None:
    for text, expected in [
        ("", "federation:\n  peers:\n    - name: b\n      url: grpc://b:1\n"),
        ("# Nothing yet.\n", "# Nothing yet.\n\nfederation:\n  peers:\n    - name: b\n      url: grpc://b:1\n"),
        ("grpc: {port: 1}", "grpc: {port: 1}\n\nfederation:\n  peers:\n    - name: b\n      url: grpc://b:1\n"),
        (
            "federation:\n  # of hops\n  max_hops: 2 # two\n\ngrpc:\n",
            "federation:\n  # of hops\n  max_hops: 2 # two\n  peers:\n    - name: b\n      url: grpc://b:1\n\ngrpc:\n",
        ),
        ("federation:  # empty\n", "federation:  # empty\n  peers:\n    - name: b\n      url: grpc://b:1\n"),
        ("federation: {}  # empty\n", "federation:  # empty\n  peers:\n    - name: b\n      url: grpc://b:1\n"),
        ("federation:\n    peers: []\n", "federation:\n    peers:\n      - name: b\n        url: grpc://b:1\n"),
        ("federation:\n  peers: null\n", "federation:\n  peers:\n    - name: b\n      url: grpc://b:1\n"),
        ("federation: {max_hops: 2}\n", "federation: {max_hops: 2, peers: [{name: b, url: 'grpc://b:1'}]}\n"),
        ("federation: {peers: []}\n", "federation: {peers: [{name: b, url: 'grpc://b:1'}]}\n"),
        (
            "federation: {peers: [{name: c, url: x}, ]}\n",
            "federation: {peers: [{name: c, url: x}, {name: b, url: 'grpc://b:1'}]}\n",
        ),
        ('{"grpc": {"port": 1}}', '{"grpc": {"port": 1}, federation: {peers: [{name: b, url: \'grpc://b:1\'}]}}'),
        (
            "federation:\n  peers:\n  - name: c\n    url: x\ngrpc:\n",
            "federation:\n  peers:\n  - name: c\n    url: x\n  - name: b\n    url: grpc://b:1\ngrpc:\n",
        ),
        (
            "federation:\n  peers:\n    - name: c\n      url: x",
            "federation:\n  peers:\n    - name: c\n      url: x\n    - name: b\n      url: grpc://b:1\n",
        ),
        (
            "federation:\r\n  peers:\r\n    - name: c\r\n      url: x\r\ngrpc:\r\n",
            "federation:\r\n  peers:\r\n    - name: c\r\n      url: x\r\n    - name: b\r\n      url: grpc://b:1\r\ngrpc:\r\n",
        ),
        (
            "federation:\n  peers:\n    - url: |\n        x\n\n    # end\n  max_hops: 2\n",
            "federation:\n  peers:\n    - url: |\n        x\n    - name: b\n      url: grpc://b:1\n\n    # end\n"
            "  max_hops: 2\n",
        ),
    ]:
        with named_case(text, expected):
            assert add_peer(text, FILE, {"name": "b", "url": "grpc://b:1"}) == expected


@pytest.mark.parametrize(
    "text",
    [
        "federation:\n  peers: &known\n    - {name: c, url: x}\nothers: *known\n",
        "federation: {peers: [{name: c, url: x} # the oldest\n  ]}\n",
        "grpc: {port: 1}\n...\n",
        "federation:\n  peers: [\n    # none yet\n  ]\n",
        "federation: {  # nobody is asked\n}\n",
        "{  # nothing yet\n}\n",
    ],
)
def test_what_cannot_be_kept_is_left_to_people(text: str) -> None:
    with pytest.raises(ConfigError) as raised:
        add_peer(text, FILE, ENTRY)
    assert "write by hand\nfederation:\n  peers:\n    - name: b\n" in str(raised.value)


def test_what_is_no_configuration_is_told() -> None:
    for text in ("[", "- a\n", "a: 1\na: 2\n", "federation: text\n", "federation: {peers: {a: 1}}\n"):
        with pytest.raises(ConfigError, match=r"cstp\.yaml: "):
            add_peer(text, FILE, ENTRY)


texts = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=12)
entries = st.fixed_dictionaries({"name": texts, "url": texts}, optional={"categories": st.lists(texts, max_size=3)})
configurations = st.fixed_dictionaries(
    {},
    optional={
        "agent": st.fixed_dictionaries({"name": texts}),
        "federation": st.fixed_dictionaries(
            {}, optional={"max_hops": st.integers(1, 8), "peers": st.none() | st.lists(entries, max_size=3)}
        ),
        "grpc": st.none() | st.fixed_dictionaries({"port": st.integers(1, 9)}),
    },
)


@given(configurations, entries, st.none() | st.booleans(), st.integers(2, 6), st.sampled_from(["\n", "\r\n"]))
def test_the_entry_is_added_and_no_line_is_lost(
    content: dict[str, Any], entry: dict[str, Any], flow: bool | None, indent: int, newline: str
) -> None:
    text = yaml.safe_dump(content, default_flow_style=flow, indent=indent, sort_keys=False, allow_unicode=True)
    text = text.replace("\n", newline)
    written = add_peer(text, FILE, entry)
    found = yaml.safe_load(written)
    peers = (content.get("federation") or {}).get("peers") or []
    assert found["federation"]["peers"] == [*peers, entry]
    found["federation"]["peers"] = None
    rest = {**content, "federation": {**content.get("federation", {}), "peers": None}}
    assert found == rest


def test_a_file_is_replaced_as_a_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    real = tmp_path / "real.yaml"
    real.write_text("a: 1\n")
    real.chmod(0o640)
    link = tmp_path / "cstp.yaml"
    link.symlink_to(real)
    replace_file(link, "b: 2\r\n")
    assert real.read_bytes() == b"b: 2\r\n"
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cstp.yaml", "real.yaml"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_stays_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "cstp.yaml"
    path.write_text("a: 1\n")
    os.chown(path, 12345, 23456)
    path.chmod(0o640)
    replace_file(path, "b: 2\n")
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (12345, 23456, 0o640)


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        replace_file(tmp_path / "nowhere" / "cstp.yaml", "a: 1\n")
