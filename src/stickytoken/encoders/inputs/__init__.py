"""How a model reads texts: tokenizer, special tokens, maximum length, routes and table of token vectors."""
