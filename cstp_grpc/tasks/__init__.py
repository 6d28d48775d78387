"""The tasks of A2A conversations, kept for bridges."""
