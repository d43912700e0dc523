"""Arenas: the games, each a PettingZoo environment in a file of its own.

Importing this package registers them: `pettingzoo.make("aec", "selfplay/absolute_zero_v0")`.
"""

from pettingzoo import register

# By name, so that nothing is imported before one is made.
register("aec", "selfplay/absolute_zero_v0", entry_point="arenas.absolute_zero:env")
