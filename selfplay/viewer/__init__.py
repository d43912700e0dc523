"""The viewer: a local page over run folders, `selfplay watch`."""
