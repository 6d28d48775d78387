"""Small helpers that know nothing of CSTP."""
