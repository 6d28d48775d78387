"""Metrics and spans of the server's calls and work."""
