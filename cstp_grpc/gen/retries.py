"""The retries of idempotent methods; delays are in seconds."""

ATTEMPTS = 4
MULTIPLIER = 2
INITIAL_BACKOFF = 0.1
MAX_BACKOFF = 5.0
