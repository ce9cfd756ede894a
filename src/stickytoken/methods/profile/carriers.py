"""Which texts copies are put into."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from stickytoken.corpora.corpus import open_ended
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.methods.panel import balanced
from stickytoken.methods.profile.anchors import TextGroup
from stickytoken.methods.profile.settings import ProfileSettings

# From a large corpus, draw this many times as many texts as are needed.
_POOL = 20
# Of each group, draw carriers from this many times as many of the shortest texts.
_SHORT = 1.5
# Texts of up to so many tokens may all be carriers of a corpus of one's own; of longer
# ones, the first sentence may.
_SENTENCE = 20
_FIRST_SENTENCE = re.compile(r"\S.*?[.!?](?=\s)", re.DOTALL)
_TOKENS_PER_TEXT_COPY = 8
_CARRIERS = 0  # key of the generator


def short_texts(
    encoder: Encoder, settings: ProfileSettings, groups: Sequence[TextGroup], needed: int, source: str
) -> dict[str, str]:
    """Choose short texts of all groups in turn that leave room for the copies, more than are needed.

    Args:
        encoder: the model.
        settings: with the copies.
        groups: groups of texts.
        needed: number of carriers.
        source: where the texts come from, for messages.

    Returns:
        The texts without the punctuation that ends them, each with the text that it begins.

    Raises:
        InputError: there are too few.
    """
    share = _share([len(group.texts) for group in groups], needed)
    pools = [(group.name, _shortest(encoder, settings, group, share)) for group in groups]
    texts = [(text, whole) for _, pool in pools for text, whole in pool.items()]
    names = [name for name, pool in pools for _ in pool]
    order = balanced(names, len(texts), [settings.seed, _CARRIERS])
    found = {open_ended(texts[k][0]): texts[k][1] for k in reversed(order)}
    if len(found) < needed:
        limit = encoder.max_length
        room_in = "" if limit is None else f" in the {limit} tokens that {encoder.name} reads"
        raise InputError(
            f"only {len(found)} sentences of {source} differ in more than their punctuation and leave room "
            f"for the copies{room_in}, {needed} are needed: use more or shorter sentences"
        )
    return dict(reversed(found.items()))


def _share(sizes: Sequence[int], needed: int) -> int:
    """Count the carriers of a group: more than an equal share where other groups have fewer texts."""
    share = -(-needed // len(sizes))
    while share < max(sizes) and sum(min(size, share) for size in sizes) < needed:
        share += 1
    return share


def _shortest(encoder: Encoder, settings: ProfileSettings, group: TextGroup, needed: int) -> dict[str, str]:
    """Return short texts of a group that leave room for the copies, each with the text that it begins."""
    generator = np.random.default_rng([settings.seed, _CARRIERS])
    count = _POOL * needed + settings.anchors
    drawn = [group.texts[k] for k in generator.permutation(len(group.texts))[:count]]
    whole = dict(zip(drawn, encoder.content_ids(drawn), strict=True))
    begun = {_beginning(text, len(ids)): text for text, ids in reversed(whole.items())}
    lengths = dict(zip(begun, map(len, encoder.content_ids(list(begun))), strict=True))
    copies = max(settings.copies) * (1 if settings.insertion is Insertion.IDS else _TOKENS_PER_TEXT_COPY)
    limit = encoder.max_length
    room = copies if limit is None else min(copies, limit // 2)
    fitting = [text for text in reversed(begun) if encoder.fits((0,) * (lengths[text] + room))]
    unlike = {open_ended(text): text for text in reversed(fitting)}
    shortest = sorted(unlike.values(), key=lambda text: lengths[text])
    sentences = 0 if group.kind else sum(lengths[text] <= _SENTENCE for text in shortest)
    # Half of a small group stays for the anchors.
    size = min(max(math.ceil(_SHORT * needed), sentences), max(needed, len(group.texts) // 2))
    return {text: begun[text] for text in shortest[:size]}


def _beginning(text: str, tokens: int) -> str:
    """Return a short text whole, and the first sentence of a longer one."""
    found = _FIRST_SENTENCE.match(text) if tokens > _SENTENCE else None
    return text if found is None else found.group()
