"""The HTTP bridge: JSON-RPC 2.0 in, gRPC out."""
