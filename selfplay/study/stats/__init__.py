"""Statistics of studies: intervals, tests, information, text and empirical games."""
