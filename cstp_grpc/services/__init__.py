"""One thin servicer for each service of the contract."""
