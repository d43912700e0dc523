"""Memory-R1 (2508.19828): a manager maintains a memory bank, and answer agents read it."""
