"""Hooks of coding agents: a hook asks a server about each tool call, and answers the agent with the verdict."""
