"""What every part of a process runs on: configuration, storage, embeddings, telemetry, listeners."""
