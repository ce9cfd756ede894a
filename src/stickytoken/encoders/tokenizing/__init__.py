"""One batched interface to tokenizers of all kinds."""
