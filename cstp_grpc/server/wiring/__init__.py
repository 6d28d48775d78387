"""One builder for each module: plain constructor calls that connect a domain to the server."""
