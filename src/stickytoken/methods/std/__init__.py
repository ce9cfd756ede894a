"""The paper's method: score every token on five pairs, validate the top, find outliers."""
