"""What the stores share: engine, writer, outbox and migrations."""
