"""The decision memory: journal, index, embedding and search."""
