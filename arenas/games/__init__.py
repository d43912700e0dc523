"""Small games, many with exact solutions, and scripted opponents."""
