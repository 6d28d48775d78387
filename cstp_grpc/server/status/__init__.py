"""The state of the server, its peers and the agents that call it, for operators."""
