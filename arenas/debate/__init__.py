"""Debates: with rewards of MAPoRL (2502.18439), or before a judge (1805.00899)."""
