"""Each dependency of pyproject.toml has its reason beside it."""

from __future__ import annotations

import re
from itertools import chain

from packaging.requirements import Requirement

from tests.installations import PROJECT, ROOT

LINE = re.compile(r'^  "(?P<requirement>[^"]+)",(?:  # (?P<reason>.+))?$', re.MULTILINE)


def test_every_dependency_has_a_reason() -> None:
    explained = {
        found["requirement"]: found["reason"] for found in LINE.finditer((ROOT / "pyproject.toml").read_text())
    }
    declared = chain(PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
    others = {text for text in declared if Requirement(text).name != PROJECT["name"]}
    assert {text for text in others if len((explained.get(text) or "").split()) < 2} == set()
