"""Callers who are known by others: JWTs of issuers, and client certificates of authorities."""
