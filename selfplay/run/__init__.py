"""A run: its folder, records, metrics, trackers and reports."""
