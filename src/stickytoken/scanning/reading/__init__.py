"""Read documents of any kind as a stream."""
