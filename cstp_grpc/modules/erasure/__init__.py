"""Erasing what an agent has left, in every room."""
