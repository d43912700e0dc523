"""Memory-R1 (2508.19828): a manager keeps a memory bank, an answer agent reads from it."""
