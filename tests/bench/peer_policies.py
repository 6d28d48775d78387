"""The same rules as policies of CSTP, Cerbos and OPA, and actions whose answers prove that they decide alike."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tests.bench.guardrail_rules import ACTION, FIRST_LIMIT, PORTABLE_RULES, PortableRule, portable_rules, write_rules

Context: TypeAlias = Mapping[str, Any]
Judge: TypeAlias = Callable[[Context], Collection[str]]
"""Asks a server about an action with this context, and returns the ids of the rules that deny it."""

KIND = "action"
"""The kind of resource that Cerbos has the rules for, and the name of its only action."""

MATCHES: Sequence[Callable[[Context, int], bool]] = (
    lambda given, _: given["affectsProduction"] and not given["codeReviewCompleted"],
    lambda given, limit: given["rows"] > limit and not given["backupVerified"],
    lambda given, limit: given["environment"] == "production" and given["recipients"] > limit,
    lambda given, _: given["destroysData"] and not given["backupVerified"],
    lambda given, limit: given["amount"] > limit and not given["ciPassing"],
)
"""Whether each of PORTABLE_RULES denies an action."""


class WrongAnswer(Exception):
    """A server denies an action by other rules than those that match it."""


def prove_answers(name: str, count: int, judge: Judge, *, stops_early: bool = False) -> None:
    """Ask about actions that no rule, one rule or many rules deny. Raises WrongAnswer.

    A server that `stops_early` names one rule that denies the action, and evaluates no others then.
    """
    for context in proving_contexts(count):
        found, expected = set(judge(context)), set(matching_rules(context, count))
        if (stops_early and found and found <= expected) or found == expected:
            continue
        raise WrongAnswer(f"{name}, {count} rules: {sorted(found)} deny {dict(context)}, and not {sorted(expected)}")


def matching_rules(context: Context, count: int) -> list[str]:
    """Return the ids of the rules that deny an action."""
    return [rule_id(number) for number in range(count) if MATCHES[number % len(MATCHES)](context, FIRST_LIMIT + number)]


def proving_contexts(count: int) -> Iterator[Context]:
    """Yield the measured context, and for each kind of rule one that the rules of this kind deny: some, or all."""
    allowed = ACTION.context
    yield allowed
    for limit in (FIRST_LIMIT + len(PORTABLE_RULES), FIRST_LIMIT + count):
        yield {**allowed, "rows": limit}
        yield {**allowed, "recipients": limit}
        yield {**allowed, "amount": limit, "ciPassing": False}
        yield {**allowed, "recipients": limit, "environment": "staging"}
        yield {**allowed, "rows": limit, "backupVerified": True}
    yield {**allowed, "codeReviewCompleted": False}
    yield {**allowed, "destroysData": True}
    yield {**allowed, "codeReviewCompleted": False, "destroysData": True, "rows": FIRST_LIMIT + count}


def rule_id(number: int) -> str:
    return f"rule-{number}"


def cstp_rulebook(folder: Path, count: int) -> Path:
    """Write a rulebook of the rules, and return its path."""
    rules = [
        {"id": rule_id(number), "name": rule_id(number), "severity": "block", "message": "no", "when": rule.cel}
        for number, rule in enumerate(portable_rules(count))
    ]
    return write_rules(folder / f"cstp-{count}.yaml", rules)


def cerbos_policy(folder: Path, count: int) -> Path:
    """Write a resource policy that allows what no rule denies, in a folder of its own, and return the folder."""
    folder = folder / f"cerbos-{count}"
    folder.mkdir()
    rules = [cerbos_rule(rule_id(number), rule) for number, rule in enumerate(portable_rules(count))]
    allow = {"actions": [KIND], "roles": ["*"], "effect": "EFFECT_ALLOW"}
    policy = {"version": "default", "resource": KIND, "rules": [allow, *rules]}
    (folder / "action.json").write_text(json.dumps({"apiVersion": "api.cerbos.dev/v1", "resourcePolicy": policy}))
    return folder


def cerbos_rule(name: str, rule: PortableRule) -> Mapping[str, Any]:
    """Return a rule that denies, and that names itself in the answer, as ours do."""
    return {
        "name": name,
        "actions": [KIND],
        "roles": ["*"],
        "effect": "EFFECT_DENY",
        "condition": {"match": {"expr": rule.cel.replace("context.", "request.resource.attr.")}},
        "output": {"when": {"ruleActivated": json.dumps(name)}},
    }


def opa_policy(folder: Path, count: int) -> Path:
    """Write a module whose set `deny` has the ids of the rules that match, and return its path."""
    path = folder / f"opa-{count}.rego"
    rules = [
        f'deny contains "{rule_id(number)}" if {{ {rule.rego} }}' for number, rule in enumerate(portable_rules(count))
    ]
    path.write_text("\n".join(["package rules", *rules, ""]))
    return path
