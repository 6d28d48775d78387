"""The tasks of conversations, kept for bridges."""
