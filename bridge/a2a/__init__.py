"""A2A in front of the server: cards, tasks, and the transports of 1.0 and 0.3, which call the gRPC server."""
