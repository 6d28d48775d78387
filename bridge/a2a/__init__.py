"""The A2A peer: cards, tasks and the transports of A2A 1.0 and 0.3, all of which end in calls to the gRPC server."""
