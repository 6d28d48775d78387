"""The benchmark: `make bench` prints one table."""
