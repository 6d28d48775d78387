"""Guardrails that ask for approvals which nobody can grant."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cstp_grpc.core.guardrails.rulebook import load_rule_set
from cstp_grpc.platform.config import AuthSettings
from cstp_grpc.server.wiring.approvals import find_missing_approvers

RULEBOOK = """
apiVersion: cstp.guardrails/v1
metadata: {name: asking, version: "1"}
guardrails:
  - {id: anybody, name: A, match: {stakes: high}, severity: approve, message: m}
  - {id: bob-or-carol, name: B, match: {stakes: high}, severity: approve, approvers: [bob, carol], message: m}
  - {id: tried, name: C, match: {stakes: high}, severity: approve, enforcement: dryrun, message: m}
  - {id: blocking, name: D, match: {stakes: high}, severity: block, message: m}
"""
BOB = {"name": "bob", "token": "bob-secret-token", "permissions": ["approve"]}
ADA = {"name": "ada", "token": "ada-secret-token", "permissions": ["approve"]}
CAROL = {"name": "carol", "token": "carol-secret-token", "permissions": ["check"]}
CERTIFIED = {"uri": "spiffe://example.com/approver", "permissions": ["approve"]}
ISSUER = {"issuer": "i", "audience": ["cstp"], "jwks_url": "https://issuer.example.com/keys"}
NOT_ANYBODY = "the guardrail anybody asks for approvals, and no token has the permission approve"
NOT_WITHOUT_AUTH = "the guardrail anybody asks for approvals, which nobody can grant while auth.enabled is false"
NOT_THEM = "the guardrail bob-or-carol asks for approvals, and no token of bob, carol has the permission approve"


@pytest.mark.parametrize(
    ("auth", "expected"),
    [
        ({"tokens": [CAROL]}, [NOT_ANYBODY, NOT_THEM]),
        ({"tokens": [CAROL, ADA]}, [NOT_THEM]),
        ({"tokens": [CAROL, BOB]}, []),
        ({"tokens": [CAROL], "certificates": [{**CERTIFIED, "name": "ada"}]}, [NOT_THEM]),
        ({"tokens": [CAROL], "certificates": [{**CERTIFIED, "name": "bob"}]}, []),
        ({"tokens": [CAROL], "jwt": [ISSUER]}, []),
        ({"enabled": False}, [NOT_WITHOUT_AUTH]),
    ],
)
def test_what_nobody_can_approve_is_told(auth: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULEBOOK)
    assert list(find_missing_approvers(load_rule_set(path), AuthSettings(**auth))) == expected
