"""A mixture: one run on several arenas."""
