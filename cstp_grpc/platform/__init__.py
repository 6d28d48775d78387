"""The base of every process: configuration, storage, embeddings, telemetry, listeners."""
