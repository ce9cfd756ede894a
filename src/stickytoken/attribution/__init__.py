"""Why two texts are similar: their similarity as a sum over pairs of tokens."""
