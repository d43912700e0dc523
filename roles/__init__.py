"""Roles: prompts made from observations, and actions parsed from completions."""
