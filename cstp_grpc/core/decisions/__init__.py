"""The journal of decisions, and their search."""
