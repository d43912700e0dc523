"""Roles: how a model sees an observation and how its words become an action."""
