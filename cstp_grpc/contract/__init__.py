"""The code about the contract that the server, the bridge and the clients share."""
