"""Ask several agents at once and merge their responses, for servers and for callers."""
