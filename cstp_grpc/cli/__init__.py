"""The `cstp` command."""
