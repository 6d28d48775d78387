"""Limits of the contract that commands need without its enumerations."""

from __future__ import annotations

MAX_NAME_CHARACTERS = 200
"""Maximum length of the name of an agent or a tenant."""
