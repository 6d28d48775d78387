"""Tests of backups, restores and copies of whole journals."""
