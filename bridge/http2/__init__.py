"""A small HTTP/2 client (RFC 9113) for the bridge's event loop."""
