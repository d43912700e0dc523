"""The configurations that Hydra composes; a package, so that they travel with the library."""
