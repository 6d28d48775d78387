"""Ways into agents: hooks of coding agents, an MCP server, adapters of frameworks."""
