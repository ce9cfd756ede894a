"""Encoders turn texts or token ids into vectors. `stickytoken.load_encoder` makes them of models."""

from stickytoken.encoders.files.tokenizer_loading import load_tokenizer
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, IdEncoder
from stickytoken.settings.prompting import Prompting

__all__ = [
    "Encoder",
    "EncoderIdentity",
    "IdEncoder",
    "Prompting",
    "load_tokenizer",
]
