"""Where sessions of liaison agents fall back to, as settings say it."""

from __future__ import annotations

from typing import Any

import pytest

from cstp_grpc.platform.config import ConfigError, Settings, load_settings


def given(fallbacks: dict[str, str | None]) -> Settings:
    pillars: dict[str, Any] = {pillar: {"fallback": target} for pillar, target in fallbacks.items()}
    return load_settings(None, auth={"enabled": False}, liaison={"pillars": pillars})


def test_sessions_stay_where_nothing_is_said() -> None:
    settings = load_settings(None, auth={"enabled": False}).liaison
    assert all(pillar.fallback is None for pillar in settings.pillars.values())
    assert (settings.unclaimed_seconds, settings.silent_seconds) == (None, None)


def test_fallbacks_follow_each_other_to_the_guide() -> None:
    settings = given({"content": "insights", "insights": "journey", "journey": "guide", "solution": "guide"}).liaison
    assert [settings.fallbacks_of(pillar) for pillar in settings.pillars] == [
        ("insights", "journey"),
        ("journey",),
        (),
        (),
    ]


@pytest.mark.parametrize(
    ("fallbacks", "complaint"),
    [
        ({"content": "finance"}, "there is no pillar finance"),
        ({"content": "content"}, "leads back: content to content"),
        ({"content": "insights", "insights": "content"}, "leads back: content to insights to content"),
        ({"content": "insights", "insights": "journey", "journey": "insights"}, "leads back"),
        ({"content": "guide", "guide": None}, "no pillar may be called guide"),
    ],
)
def test_fallbacks_that_lead_nowhere_are_refused(fallbacks: dict[str, str | None], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        given(fallbacks)


def test_no_token_may_have_the_name_of_who_moves_sessions() -> None:
    with pytest.raises(ConfigError, match="liaison-supervisor"):
        load_settings(None, auth={"tokens": [{"name": "liaison-supervisor", "token": "a-secret-token-of-it"}]})
