"""Metrics and traces of a process: its calls, and the work of its modules."""
