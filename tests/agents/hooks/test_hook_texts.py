"""The texts of answers."""

from __future__ import annotations

import pytest

from cstp_grpc.agents.hooks.hook_texts import describe_rules


@pytest.mark.parametrize(
    ("names", "line"),
    [
        ([], ""),
        (["shop"], "Rules: shop."),
        (["safety-git"], "Rules: git. To try them:"),
        (["shop", "safety-git", "safety-databases"], "Rules: shop (git, databases). To try them:"),
    ],
)
def test_the_rules_in_force_are_listed(names: list[str], line: str) -> None:
    assert describe_rules(names).partition(" cstp check")[0] == line
