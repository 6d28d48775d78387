"""Texts to vectors: the embedder, its models and where their files come from."""
