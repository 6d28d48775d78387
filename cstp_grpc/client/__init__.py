"""The Python client."""
