"""The check before an action: audit, guardrails, decisions, intents, tokens, parsed commands."""
