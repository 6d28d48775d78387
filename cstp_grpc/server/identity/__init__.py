"""Who calls: bearer tokens, JWTs of issuers, client certificates, and the addresses that calls come from."""
