"""Room for liaison routing."""
