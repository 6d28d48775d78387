"""Intentions in plain sentences: verbs with their objects, neither negated nor only talked about."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cstp_grpc.core.commands.model import Invocation
from cstp_grpc.core.guardrails.evaluator import GuardrailEvaluator
from cstp_grpc.core.guardrails.model import Action
from cstp_grpc.core.guardrails.plain_sentences import Intention, IntentionFinder, stem_word
from cstp_grpc.core.guardrails.rulebook import RulebookError, load_rule_set
from tests.core.guardrails.rulebooks import content, rule, rule_set, write
from tests.named_case import named_case

VERBS = ("delete", "drop", "turn off", "get rid of")
REMOVAL = Intention(VERBS, ("table", "firewall", "user"))
ALL_USERS = Intention(VERBS, ("user",), ("all", "every", "everybody"))
COMMAND = Intention(("rm -rf",))
FINDER = IntentionFinder([REMOVAL, ALL_USERS, COMMAND])


def intends(sentence: str, sought: Intention = REMOVAL) -> bool:
    return sought.key in FINDER.find(sentence)


def test_a_verb_with_its_object_is_an_intention() -> None:
    for sentence in [
        "Drop the table",
        "Drop the old orders tables",
        "please DROP   TABLE",
        "I am dropping a table",
        "The table will be dropped",
        "Deletion of the table",
        "Turn the firewall off",
        "Turn off the firewall",
        "Get rid of two tables",
        "Rotate and delete the tables",
        "Back up first, then drop the table",
        "Free space by deleting the table",
        "Update the job to drop the table",
        "Look at the table and drop it",
        "Delete the draft, the notes and the table",
        "Explain the plan. Then drop the table",
        "Explain the plan and drop the table",
        "Can you drop the table?",
        "Delete everything in the table",
        "Don't wait. Drop the table",
        "Run the script that drops the table",
        "Delete the user’s table",
        "ＤＲＯＰ ｔｈｅ ｔａｂｌｅ",
    ]:
        with named_case(sentence):
            assert intends(sentence)


def test_what_is_negated_or_talked_about_or_of_another_object_is_none() -> None:
    for sentence in [
        "",
        "Drop the idea",
        "A table of drops",
        "Do not drop the table",
        "Don't delete or drop the table",
        "Never delete the table",
        "Explain how to drop a table",
        "Explain how to stop and drop the table",
        "Document why we dropped the table",
        "Add a test for the delete endpoint of the table",
        "Review the PR that removes and drops the table",
        "Implement create, read and delete for tables",
        "Should we drop the table?",
        "Docs on dropping tables",
        "Delete the table component",
        "Delete a comment above the table",
        "Drop the key from the table",
        "Users can drop the table",
        "Delete the note that a table needs an owner",
        "The delete button turns a table off",
        "Delete one two three four five six seven eight nine ten table",
        "Drop it. The table stays",
    ]:
        with named_case(sentence):
            assert not intends(sentence)


def test_a_qualifier_stands_near_the_verb() -> None:
    assert intends("Delete all users", ALL_USERS)
    assert intends("Delete the users of everybody", ALL_USERS)
    assert not intends("Delete the user", ALL_USERS)
    assert not intends("Read all files. Delete the user", ALL_USERS)


def test_a_command_needs_no_object() -> None:
    assert intends("Run `rm -rf build`", COMMAND)
    assert intends("Run the rm -rf command", COMMAND)
    assert not intends("Document what rm -rf does", COMMAND)


@pytest.mark.parametrize(
    ("word", "other"),
    [("dropped", "dropping"), ("policies", "policy"), ("wiped", "wipe"), ("boxes", "box"), ("gpus", "gpu")],
)
def test_forms_of_a_word_have_one_stem(word: str, other: str) -> None:
    assert stem_word(word) == stem_word(other)


@pytest.mark.parametrize(("word", "other"), [("production", "product"), ("customer", "custom"), ("off", "of")])
def test_different_words_have_different_stems(word: str, other: str) -> None:
    assert stem_word(word) != stem_word(other)


WORDS = "drop delete turn off table user all the a to by and or then not how be it of for please explain can . , ? ’s -"


@given(st.text(max_size=200) | st.lists(st.sampled_from(WORDS.split()), max_size=30).map(" ".join))
@example("drop ﷺ ẞ İ \x00")
def test_any_text_is_read(text: str) -> None:
    found = FINDER.find(text)

    assert set(found) <= {REMOVAL.key, ALL_USERS.key, COMMAND.key}
    assert FINDER.find(text) == found


@given(st.text(alphabet="abc ,.", max_size=60), st.text(alphabet="abc ,.", max_size=60))
def test_sentences_around_it_change_nothing(before: str, after: str) -> None:
    assert intends(f"{before}.\n\nDrop the table. {after}")


HOSTILE = [
    "drop ",
    "to drop ",
    "drop and ",
    "turn x ",
    "delete all, ",
    "delete it and ",
    "be drop , ",
    "a. ",
    "\n ",
    "'",
]


@pytest.mark.parametrize("repeated", HOSTILE)
def test_the_longest_text_is_read_in_linear_time(repeated: str) -> None:
    text = (repeated * 65_536)[:65_536]
    started = time.process_time()
    FINDER.find(text)
    # Measured at most 0.1 seconds.
    assert time.process_time() - started < 2


RULE = [rule("r", "action.intends(['drop', \"delete\"], ['table'], ['all'])")]


def test_rules_read_the_sentences_of_an_action_but_not_its_command() -> None:
    evaluator = GuardrailEvaluator(rule_set(RULE))

    assert not evaluator.evaluate(Action("Drop all tables")).allowed
    assert not evaluator.evaluate(Action("Clean up", announced_context="Drop all tables.")).allowed
    assert evaluator.evaluate(Action("Drop a table")).allowed
    command = "drop all tables"
    assert evaluator.evaluate(Action(command, invocation=Invocation(command))).allowed
    assert not evaluator.evaluate(Action("Drop all tables", invocation=Invocation("ls"))).allowed


def test_objects_may_be_anything() -> None:
    evaluator = GuardrailEvaluator(rule_set([rule("r", "action.intends(['drop'], [], ['production'])")]))

    assert not evaluator.evaluate(Action("Drop it in production")).allowed
    assert evaluator.evaluate(Action("Drop it")).allowed


def test_a_call_that_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    for call, reason in [
        ("action.intends('drop')", "action.intends takes lists of texts in plain quotes"),
        ("action.intends([])", "action.intends takes lists of texts in plain quotes"),
        ("action.intends(['drop'], context.words)", "action.intends takes lists of texts in plain quotes"),
        ("action.intends(['drop'] ['table'])", "action.intends takes lists of texts in plain quotes"),
        ("action.intends(['a'], ['b'], ['c'], ['d'])", "action.intends takes lists of texts in plain quotes"),
        ("action.intends(['drop'], ['table'", "action.intends takes lists of texts in plain quotes"),
        ("action.intends == true", "action.intends takes lists of texts in plain quotes"),
        ("action.intends(['--'])", "asks action.intends for a phrase without words"),
        ("action.intends(['drop'], ['a b c d'])", 'asks action.intends for "a b c d", which has more than 3 words'),
        ("action.intends(['a'], [" + ", ".join(["'a'"] * 200) + "])", "asks action.intends for more than 200 phrases"),
        ("action.intends(['a'], ['b']) && 1", "found no matching overload"),
        ("action.intents(['a'])", "there is no action.intents"),
    ]:
        with named_case(call, reason):
            declared: dict[str, Any] = {"words": {"type": "list"}}
            with pytest.raises(RulebookError) as error:
                load_rule_set(write(tmp_path / "rules.yaml", content([rule("r", call)], declared)))
            assert reason in str(error.value)
