"""The web app: try a token on two texts, look through a run, explain a token, compare runs."""
