"""Expressions of packaged rules are compiled once for each version of the code, and damage to the file is harmless."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cstp_grpc.core.guardrails import cel_engine
from cstp_grpc.core.guardrails.cel_engine import CelEnvironment
from cstp_grpc.core.guardrails.cel_text import RuleExpressionError
from cstp_grpc.core.guardrails.compiled_expressions import CompiledExpressions
from cstp_grpc.core.guardrails.inputs import InputType

KEY, TEXT = b"key", "context.count > 1 && action.description.contains('x')"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "engine.so").write_text("1")
    return tmp_path / "engine.so"


@pytest.fixture
def kept(engine: Path) -> Path:
    path = engine.with_name("rules.compiled")
    compiled = CompiledExpressions(engine, path)
    compiled.add(KEY, b"compiled")
    compiled.finish(keep=True)
    return path


def test_kept_expressions_are_found_by_the_same_code(engine: Path, kept: Path) -> None:
    assert CompiledExpressions(engine, kept).find(KEY) == b"compiled"
    engine.write_text("22")
    assert CompiledExpressions(engine, kept).find(KEY) is None


def test_expressions_of_several_starts_are_kept(engine: Path, kept: Path) -> None:
    second = CompiledExpressions(engine, kept)
    second.add(b"other", b"too")
    second.finish(keep=True)
    second.add(b"late", b"not kept")
    third = CompiledExpressions(engine, kept)
    assert [third.find(key) for key in (KEY, b"other", b"late")] == [b"compiled", b"too", None]


@pytest.mark.parametrize("damage", [b"", b"short", b"x" * 100])
def test_damaged_file_is_ignored(damage: bytes, engine: Path, kept: Path) -> None:
    kept.write_bytes(damage)
    assert CompiledExpressions(engine, kept).find(KEY) is None


def test_nothing_is_written_without_wish_or_right(
    engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = CompiledExpressions(engine, tmp_path / "absent" / "rules.compiled")
    compiled.add(KEY, b"compiled")
    compiled.finish(keep=True)
    for keep, forbidden in ((False, False), (True, True)):
        monkeypatch.setattr(sys, "dont_write_bytecode", forbidden)
        compiled = CompiledExpressions(engine, tmp_path / "rules.compiled")
        compiled.add(KEY, b"compiled")
        compiled.finish(keep=keep)
    assert sorted(tmp_path.iterdir()) == [engine]


def test_kept_expression_evaluates_like_a_compiled_one(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = engine.with_name("rules.compiled")

    def values() -> list[object]:
        monkeypatch.setattr(cel_engine, "COMPILED", compiled := CompiledExpressions(engine, path))
        environment = CelEnvironment([("count", InputType.NUMBER)])
        program = environment.compile_one(environment.parse_condition(TEXT))
        with pytest.raises(RuleExpressionError, match="must be a bool"):
            environment.parse_condition("context.count + 1.0")
        compiled.finish(keep=True)
        bounds = [{"context.count": count, "action.description": "x"} for count in (1.0, 2.0)]
        return [program.tree, *(program.is_true(environment.bind(each)) for each in bounds)]

    assert values() == values() != []
    assert path.exists()
    # Another type of the same name is another environment.
    other = CelEnvironment([("count", InputType.STRING)])
    with pytest.raises(RuleExpressionError):
        other.parse_condition(TEXT)
