"""The gRPC server: composition, error table and interceptors."""
