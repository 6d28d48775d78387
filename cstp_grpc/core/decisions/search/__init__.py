"""Finding decisions: the vectors in memory, the approximate index beside them, and the planner that chooses."""
