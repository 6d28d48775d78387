"""Optional domains, each of which can be left out of a server."""
