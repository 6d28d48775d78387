"""What an agent should know when it starts."""
