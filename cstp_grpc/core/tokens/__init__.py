"""Tokens of agents that are made, rotated and revoked while servers run."""
