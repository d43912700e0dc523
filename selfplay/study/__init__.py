"""Studies: measures of finished or running runs, read from their folders."""
