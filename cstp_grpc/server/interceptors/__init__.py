"""Checks of every call before its servicer, and the status of its errors after it."""
