"""Encoders turn texts or token ids into vectors. This package defines, adapts and loads encoders."""

from stickytoken.encoders.loading import analyze_vocabulary, load_encoder
from stickytoken.encoders.loading.resolution import load_tokenizer
from stickytoken.encoders.mean_similarity import MeanSimilarity, isoscore, mean_similarity
from stickytoken.encoders.protocol import Encoder, EncoderIdentity, IdEncoder
from stickytoken.settings.prompting import Prompting

__all__ = [
    "Encoder",
    "EncoderIdentity",
    "IdEncoder",
    "MeanSimilarity",
    "Prompting",
    "analyze_vocabulary",
    "isoscore",
    "load_encoder",
    "load_tokenizer",
    "mean_similarity",
]
