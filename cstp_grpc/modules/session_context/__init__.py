"""The context for an agent that starts a session."""
