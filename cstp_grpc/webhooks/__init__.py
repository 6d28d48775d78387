"""Posting notifications to addresses that agents name."""
