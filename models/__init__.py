"""The networks and their registry."""
