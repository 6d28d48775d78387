"""What docs/federation.md says of statuses, guardrails, settings and options."""

from __future__ import annotations

import re

from cstp_grpc.contract.enums import QUORUM_GUARDRAIL, UNREACHABLE_GUARDRAIL, PeerStatus
from cstp_grpc.platform import config
from tests.snippets import ROOT

GUIDE = (ROOT / "docs" / "federation.md").read_text(encoding="utf-8")


def test_every_status_and_guardrail_is_in_the_guide() -> None:
    assert re.findall(r"^\| `(\w+)` \|", GUIDE, re.MULTILINE) == [status.value for status in PeerStatus]
    assert f"`{UNREACHABLE_GUARDRAIL}`" in GUIDE
    assert f"`{QUORUM_GUARDRAIL}`" in GUIDE


def test_the_defaults_that_the_guide_names_are_those_of_the_settings() -> None:
    settings = config.FederationSettings()
    assert f"`max_hops: {settings.max_hops}`, the default" in GUIDE
    for name in re.findall(r"`federation\.(\w+)`", GUIDE):
        assert name in config.FederationSettings.model_fields
    for name in ("breaker_failures", "breaker_seconds", "max_calls", "default_for", "quorums"):
        assert f"`{name}`" in GUIDE
        assert name in config.FederationSettings.model_fields
