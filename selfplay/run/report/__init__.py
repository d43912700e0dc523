"""Reports: static pages made from the records of runs."""
