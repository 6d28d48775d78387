"""Feedback on announcements that comes after their answers."""
