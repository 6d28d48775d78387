"""A server of the Model Context Protocol in front of a CSTP server, of which it is a client."""
