"""The Intent Layer: rules for paths, and learnings of agents about them."""
