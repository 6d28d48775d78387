"""The append-only audit trail."""
