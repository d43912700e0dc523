"""Small games with exact solutions, and scripted opponents."""
