"""Configs: composition with Hydra, checks, and objects built from config nodes."""
