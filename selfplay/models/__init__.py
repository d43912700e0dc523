"""Models: policies, adapters, renderers, tree attention and warm starts."""
