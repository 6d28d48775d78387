"""CSTP: intents, guardrail checks and a shared decision journal for agents."""
