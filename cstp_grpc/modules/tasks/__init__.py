"""The tasks of A2A conversations, stored for bridges."""
