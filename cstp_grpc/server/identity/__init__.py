"""The identity of callers: bearer tokens, JWTs of issuers, client certificates, and addresses."""
