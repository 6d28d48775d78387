"""Finding decisions: the vectors in memory, the approximate index, and the planner that chooses between them."""
