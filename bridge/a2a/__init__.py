"""A2A before the server: cards, tasks, and the transports of 1.0 and 0.3, which end in calls to the gRPC server."""
