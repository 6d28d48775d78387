"""The Intent Layer: what governs a path, and what agents learned about it."""
