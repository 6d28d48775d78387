"""The contract without a server: calls on a data folder, answered in the process of the caller."""
