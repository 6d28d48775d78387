"""A server of the Model Context Protocol in front of a CSTP server, which it calls as a client."""
