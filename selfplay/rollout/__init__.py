"""Rollouts: many episodes of an arena at once, played by engines through roles."""
