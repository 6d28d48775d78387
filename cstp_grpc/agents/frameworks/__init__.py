"""Agents of Python frameworks under guard: an adapter for each framework, on one guard for tool calls."""
