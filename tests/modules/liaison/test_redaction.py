import copy
import json
from typing import Any

import jsonpath_rfc9535
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstp_grpc.common.canonical_json import hash_canonical_json
from cstp_grpc.contract.errors import ConfigError, ContextSharingFailed
from cstp_grpc.modules.liaison.redaction import MASK, Redaction, RedactionRule
from tests.named_case import named_case

LARGE = 1_000_000


def redacted(context: dict[str, Any], *paths: str, masks: tuple[str, ...] = ()) -> Any:
    """Return the rest of a context where `paths` are dropped and `masks` are masked."""
    rules = [RedactionRule(path, mask=False) for path in paths] + [RedactionRule(path, mask=True) for path in masks]
    return Redaction(rules, LARGE).apply(context).context


CONTEXT: dict[str, Any] = {
    "shared_intent": "migrate the reports",
    "password": "hunter2",
    "user": {"name": "Ada", "password": None, "cards": ["4111111111111111", "none"]},
    "conversation_history": [
        {"sequence": 1, "role": "system", "content": "be brief", "metadata": {"cost": 1}},
        {"sequence": 2, "role": "user", "content": "my key is sk-17", "metadata": {"cost": 2}},
        {"sequence": 3, "role": "assistant", "content": "ok"},
    ],
}


def test_without_rules_the_context_is_shared_as_it_is() -> None:
    answer = Redaction([], LARGE).apply(CONTEXT)
    assert answer.context is CONTEXT
    assert answer.context_hash == hash_canonical_json(CONTEXT)


def test_what_is_dropped_is_gone_and_what_is_masked_can_be_seen_to_have_been() -> None:
    remains = redacted(CONTEXT, "$..metadata", "$.user.cards[0]", masks=("$..password",))
    assert remains == {
        "shared_intent": "migrate the reports",
        "password": MASK,
        "user": {"name": "Ada", "password": MASK, "cards": ["none"]},
        "conversation_history": [
            {"sequence": 1, "role": "system", "content": "be brief"},
            {"sequence": 2, "role": "user", "content": "my key is sk-17"},
            {"sequence": 3, "role": "assistant", "content": "ok"},
        ],
    }


def test_the_hash_is_that_of_what_is_shared() -> None:
    answer = Redaction([RedactionRule("$.password", mask=False)], LARGE).apply(CONTEXT)
    assert answer.context_hash == hash_canonical_json(
        {name: value for name, value in CONTEXT.items() if name != "password"}
    )


def test_the_context_that_is_given_is_not_changed() -> None:
    before = copy.deepcopy(CONTEXT)
    redacted(CONTEXT, "$..metadata", "$.conversation_history[1]", masks=("$..password", "$.user"))
    assert before == CONTEXT


def test_filters_tell_which_elements_are_meant() -> None:
    remains = redacted(
        CONTEXT,
        "$.conversation_history[?@.role == 'system']",
        masks=("$..[?search(@, 'sk-[0-9]+')]", "$.user.cards[?match(@, '[0-9]{16}')]"),
    )
    assert remains["user"]["cards"] == [MASK, "none"]
    assert [message["content"] for message in remains["conversation_history"]] == [MASK, "ok"]


def test_what_a_path_does_not_find_is_no_failure() -> None:
    assert redacted({"a": 1}, "$.b.c", "$.a[0]", "$.a..x", masks=("$[7]",)) == {"a": 1}


def test_rules_that_overlap_are_about_the_context_as_it_was_given() -> None:
    for drops, masks, remains in [
        (("$.a", "$.a.b"), (), {"c": [1, 2, 3, 4]}),
        (("$.a.b", "$.a"), (), {"c": [1, 2, 3, 4]}),
        (("$.a.b",), ("$.a",), {"a": MASK, "c": [1, 2, 3, 4]}),
        (("$.a",), ("$.a.b",), {"c": [1, 2, 3, 4]}),
        (("$.a",), ("$.a",), {"c": [1, 2, 3, 4]}),
        (("$.c[0]", "$.c[1]"), (), {"a": {"b": {"d": 1}}, "c": [3, 4]}),
        (("$.c[-1]", "$.c[0]"), ("$.c[1]",), {"a": {"b": {"d": 1}}, "c": [MASK, 3]}),
        (("$.c[0:4:2]", "$.c[0]"), (), {"a": {"b": {"d": 1}}, "c": [2, 4]}),
        (("$.*",), (), {}),
        ((), ("$.*", "$..*"), {"a": MASK, "c": MASK}),
        (("$..b", "$..d"), (), {"a": {}, "c": [1, 2, 3, 4]}),
    ]:
        with named_case(drops, masks, remains):
            assert redacted({"a": {"b": {"d": 1}}, "c": [1, 2, 3, 4]}, *drops, masks=masks) == remains


NAMES = st.sampled_from(["a", "b", "0", "é", "a.b", "it's"])
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["x", "", MASK]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=15,
)
STEPS = st.sampled_from([".a", "..b", ".*", "..*", "[0]", "[-1]", "[::2]", "[1:]", "['a.b']", '["it\'s"]', "[0,'a']"])
FILTERS = st.sampled_from(["[?@.a]", "[?@ == 'x']", "[?search(@, 'x')]", "[?!(@[0] > 1) || @.a == $.b]"])
PATHS = st.lists(STEPS | FILTERS, min_size=1, max_size=4).map(lambda steps: "$" + "".join(steps))
RULES = st.lists(st.builds(RedactionRule, PATHS, st.booleans()), max_size=4)


def by_place(context: dict[str, Any], rules: list[RedactionRule]) -> Any:
    """Return the rest of a context when each place is tested against the rules."""
    selected = {
        mask: {
            node.location for rule in rules if rule.mask is mask for node in jsonpath_rfc9535.find(rule.path, context)
        }
        for mask in (True, False)
    }

    def remaining(value: Any, here: tuple[int | str, ...]) -> Any:
        if here in selected[True]:
            return MASK
        if isinstance(value, dict):
            return {k: remaining(v, (*here, k)) for k, v in value.items() if (*here, k) not in selected[False]}
        if isinstance(value, list):
            return [remaining(v, (*here, i)) for i, v in enumerate(value) if (*here, i) not in selected[False]]
        return value

    return remaining(context, ())


@given(st.dictionaries(NAMES, VALUES, max_size=4), RULES)
def test_what_remains_is_what_no_rule_selects(context: dict[str, Any], rules: list[RedactionRule]) -> None:
    before = copy.deepcopy(context)
    answer = Redaction(rules, LARGE).apply(context)
    assert answer.context == by_place(context, rules)
    assert answer.context_hash == hash_canonical_json(answer.context)
    assert context == before


@given(st.dictionaries(NAMES, VALUES, max_size=4), RULES, st.randoms())
def test_the_order_of_rules_does_not_matter(context: dict[str, Any], rules: list[RedactionRule], chance: Any) -> None:
    shuffled = chance.sample(rules, len(rules))
    assert Redaction(rules, LARGE).apply(context) == Redaction(shuffled, LARGE).apply(context)


@pytest.mark.parametrize("size", [1, 2])
def test_what_is_too_large_is_not_shared_and_the_setting_is_named(size: int) -> None:
    context = {"a": "é" * (1012 // 2 + size)}
    content = json.dumps(context, ensure_ascii=False, separators=(",", ":")).encode()
    with pytest.raises(ContextSharingFailed) as refused:
        Redaction([], len(content) - 1).apply(context)
    assert f"{len(content)} bytes" in refused.value.message
    assert "liaison.max_context_bytes" in refused.value.message
    assert str(len(content) - 1) in refused.value.message
    assert refused.value.metadata == {"reason": "the context is too large"}
    assert Redaction([], len(content)).apply(context).context is context


def test_only_what_remains_counts() -> None:
    context = {"a": 1, "notes": "x" * 2000}
    assert Redaction([RedactionRule("$.notes", mask=False)], 1024).apply(context).context == {"a": 1}


def test_a_path_that_cannot_be_used_or_could_take_any_time_is_refused_at_the_start() -> None:
    for path, why in [
        ("password", "JSONPath"),
        ("$.a b", "JSONPath"),
        ("$..", "JSONPath"),
        ("$[?nothing(@)]", "JSONPath"),
        ("$[" + "1" * 5000 + "]", "JSONPath"),
        ("$[?@ == 1e400]", "JSONPath"),
        ("$" + "[?(" * 3000 + "@.a", "JSONPath"),
        ("$", "whole context"),
        ("$..[?@..a]", "`..`"),
        ("$[?@.a[?@..b]]", "`..`"),
        ("$[?count(@..a) > 1]", "`..`"),
        ("$[?!(@.x == 1 || @..y)]", "`..`"),
        ("$[?@[*,*]]", "several selectors"),
        ("$..[?$.*]", "`$` within"),
        ("$..[?@.a == 1 && count($.*) == 1]", "`$` within"),
        ("$.*[?@]", "[*]"),
        ("$.*[?@.a || !@]", "[*]"),
        ("$[?search(@.a, @.b)]", "pattern"),
        ("$[?match(@.a, $.b)]", "pattern"),
        ("$[?match(@.a, '[')]", "RFC 9485"),
        ("$[?search(@.a, '(?=a)')]", "RFC 9485"),
    ]:
        with named_case(path, why):
            rules = [RedactionRule("$.fine", mask=False), RedactionRule(path, mask=True)]
            with pytest.raises(ConfigError) as refused:
                Redaction(rules, LARGE)
            assert str(refused.value).startswith("liaison.redaction.1.path: ")
            assert why in str(refused.value)


def test_every_bad_path_is_named() -> None:
    with pytest.raises(ConfigError, match=r"(?s)redaction\.0\.path.*redaction\.2\.path"):
        Redaction([RedactionRule(path, mask=False) for path in ("a", "$.a", "b")], LARGE)


@given(st.text(st.sampled_from("$@.[]*?()'\"ab01:,!=<>&|-\\ue"), max_size=12).map("$".__add__))
def test_whatever_is_written_is_a_path_or_refused(path: str) -> None:
    try:
        usable = Redaction([RedactionRule(path, mask=True)], LARGE)
    except ConfigError:
        return
    assert isinstance(usable.apply({"a": {"b": [0, 1, {"a": "x"}]}}).context, dict)


def test_dots_in_patterns_stand_for_any_character_but_line_breaks() -> None:
    context = {"lines": ["a-b", "a\nb", "a\rb", "a.b", "a\U0001f600b"]}
    assert redacted(context, "$.lines[?match(@, 'a.b')]") == {"lines": ["a\nb", "a\rb"]}
    assert (
        redacted(context, r"$.lines[?match(@, 'a[.]b') || match(@, 'a\\.b')]")["lines"]
        == context["lines"][:3] + context["lines"][4:]
    )


def test_patterns_are_those_of_rfc_9485() -> None:
    for pattern, found in [
        ("[0-9]{16}", ["4111111111111111"]),
        ("[0-9]{3,10}", ["123", "1234567890"]),
        ("[0-9]{11,}", ["4111111111111111"]),
        ("12(3|4)", ["123"]),
        ("\\\\p{Lu}[a-z\\\\-]*", ["A-b"]),
        ("[^A-Za-z0-9]", ["-", "é"]),
        ("[-]|[a-]", ["-"]),
        ("(.|..)-.", ["A-b"]),
        ("", [""]),
    ]:
        with named_case(pattern, found):
            texts = ["4111111111111111", "123", "1234567890", "A-b", "-", "é", ""]
            remains = redacted({"texts": texts}, f"$.texts[?match(@, '{pattern}')]")
            assert remains["texts"] == [text for text in texts if text not in found]


def test_other_patterns_are_refused_at_the_start() -> None:
    for pattern in [
        "a**",
        "(a",
        "a)",
        "[]",
        "[a",
        "a{,2}",
        "a{3,2}",
        "[z-a]",
        "(?i)a",
        "(?:a)",
        "\\\\d",
        "\\\\p{Xx}",
        "\\\\p{L",
        "a{1}{2}",
    ]:
        with named_case(pattern), pytest.raises(ConfigError):
            Redaction([RedactionRule(f"$[?search(@, '{pattern}')]", mask=False)], LARGE)


def chain(depth: int, innermost: Any) -> Any:
    """Return objects within each other."""
    return innermost if depth == 0 else {"a": chain(depth - 1, innermost)}


def test_many_ways_to_the_same_place_are_gone_once() -> None:
    assert redacted(chain(24, "x"), masks=("$" + "..*" * 20,)) == chain(20, MASK)


def test_a_context_that_is_too_deep_for_a_rule_is_not_shared() -> None:
    with pytest.raises(ContextSharingFailed) as refused:
        redacted(chain(150, "x"), "$..password")
    assert refused.value.metadata == {"reason": "redaction failed"}


@pytest.mark.parametrize("path", ["$..[?search(@, '([a-z]*)*[0-9]')]", "$..password"])
def test_a_context_that_takes_too_long_is_not_shared(path: str) -> None:
    hasty = Redaction([RedactionRule(path, mask=False)], LARGE, max_seconds=1e-9)
    with pytest.raises(ContextSharingFailed) as refused:
        hasty.apply({"text": "a" * 50, "user": {"password": "x"}})
    assert refused.value.metadata == {"reason": "redaction took too long"}


def test_a_pattern_that_would_never_end_ends_in_a_refusal() -> None:
    rule = RedactionRule("$[?match(@, '(a|a[a]*|(a|aa)*)*b?')]", mask=False)
    with pytest.raises(ContextSharingFailed):
        Redaction([rule], LARGE, max_seconds=0.1).apply({"text": "a" * 60 + "!"})
