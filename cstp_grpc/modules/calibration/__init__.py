"""Lessons of reviewed decisions: calibration of confidences, and patterns of failure."""
