"""Small helpers that are independent of CSTP."""
