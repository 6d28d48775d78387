"""What the server, the bridge and the clients share about the contract."""
