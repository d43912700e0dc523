"""Models: policies, adapters, the token seam, tree attention, warm starts."""
