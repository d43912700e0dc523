"""Measures of studies, one module each."""
