"""How well searches find what was meant, on corpora that do not come with the project."""
