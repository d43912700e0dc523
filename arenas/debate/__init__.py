"""Debates, with the rewards of MAPoRL (2502.18439) or with a judge (1805.00899)."""
