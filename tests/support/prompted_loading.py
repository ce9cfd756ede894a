"""Prompted models: loaded with the options of a prompt spelled out, or made of tiny decoders."""

from dataclasses import fields

import tiny_architectures as architectures
import tiny_decoders
from stickytoken import load_encoder
from stickytoken.encoders import Prompting
from stickytoken.language_models.encoder import CausalPromptEncoder
from stickytoken.language_models.prompts import find_prompt
from stickytoken.language_models.reading import Reading, TokenPrepending


def load_prompted(model, **options):
    prompting = {field.name: options.pop(field.name) for field in fields(Prompting) if field.name in options}
    return load_encoder(model, prompt=Prompting(**prompting), **options)


def read(prompt="prompteol", span=None, layer=-1):
    return Reading(find_prompt(prompt), None if span is None else TokenPrepending(*span), layer)


def encoder_of(reading, kind="qwen2", **options):
    return CausalPromptEncoder(*tiny_decoders.decoder(kind), "tiny", reading, **options)


def encoder_that_merges_quotes(span=None, **options):
    """Return a model in whose vocabulary the full stop shares a token with the end of the quotation."""
    tokenizer = architectures.qwen_tokenizer(closing=False)
    tokenizer.add_tokens(['."'])
    model = tiny_decoders.decoder("qwen2")[0]
    model.resize_token_embeddings(len(tokenizer) + 1)
    return CausalPromptEncoder(model, tokenizer, "tiny", read(span=span), **options)
