"""Announcing: recall, judge, remember and suggest."""
