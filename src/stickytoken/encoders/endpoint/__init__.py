"""Models behind an OpenAI-compatible endpoint, as encoders of texts."""
