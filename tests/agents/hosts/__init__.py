"""Real coding agents with the hook, against a scripted model; `make test-hosts` runs them."""
