"""Chat sessions, and routing them from the guide to liaison agents."""
