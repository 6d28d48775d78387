"""The standard rules stop dangerous actions that are described in plain sentences, and let harmless ones pass."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import yaml

from cstp_grpc.core.guardrails import Action, Rulebook
from cstp_grpc.core.guardrails.rulebook_files import packaged_rulebook_path

SETS = sorted(Path(__file__).parent.glob("labelled_sentences_*.yaml"))


@cache
def rules() -> Rulebook:
    return Rulebook.load(packaged_rulebook_path("standard"))


@pytest.mark.parametrize("path", SETS, ids=lambda path: path.stem)
def test_dangerous_sentences_are_stopped_and_harmless_ones_are_not(path: Path) -> None:
    families = yaml.safe_load(path.read_text(encoding="utf-8")).values()
    dangerous, harmless = (
        [text for family in families for text in family[label]] for label in ("dangerous", "harmless")
    )

    missed = [text for text in dangerous if rules().check(Action(text)).allowed]
    held = [text for text in harmless if not rules().check(Action(text)).allowed]

    assert len(missed) <= 0.05 * len(dangerous), missed
    assert len(held) <= 0.03 * len(harmless), held
    assert len(dangerous) >= 80
    assert len(harmless) >= 80


def test_a_claim_to_change_nothing_turns_off_rules_about_words() -> None:
    claim = {"readOnly": True}

    assert not rules().check(Action("Drop the old orders table")).allowed
    assert rules().check(Action("Drop the old orders table", context=claim)).allowed
