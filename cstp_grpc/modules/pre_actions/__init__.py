"""Announcing an action and recording the decision to take it, in one call."""
