"""Questions that are asked, answered, voted on or judged, and their verifiers."""
