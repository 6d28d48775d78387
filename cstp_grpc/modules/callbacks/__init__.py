"""Notifications to announcing agents after their answers."""
