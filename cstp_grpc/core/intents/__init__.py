"""Announcing intents: check guardrails, search similar decisions, store, and suggest."""
