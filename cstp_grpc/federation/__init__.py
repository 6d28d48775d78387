"""Asking several agents and merging their answers, for servers and for callers."""
