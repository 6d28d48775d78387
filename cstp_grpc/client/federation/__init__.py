"""Asking several agents at once and merging what they answer."""
