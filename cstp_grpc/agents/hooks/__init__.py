"""Hooks of coding agents: their tool calls become questions to a server, and its verdicts answers of the hook."""
