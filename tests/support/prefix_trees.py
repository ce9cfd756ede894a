"""Inputs that begin alike, and whether they went through trees."""

from collections.abc import Sequence

from stickytoken.encoders import Encoder
from stickytoken.encoders.compute.prefixes import PrefixReuse
from stickytoken.insertion import Insertion, Placement, Token, insert_as_ids
from stickytoken.methods.std.placement import PathsByToken


def grid_probes(
    encoder: Encoder, texts: Sequence[str], placement: Placement, tokens: int = 4, copies: int = 8
) -> list:
    """1 to so many copies of a few tokens in the texts, as detection makes them."""
    carriers = tuple(encoder.tokenize(texts))
    words = tuple(len(carrier.words) for carrier in carriers)
    paths = PathsByToken(1, words, copies, Insertion.IDS)
    entries = [entry for entry in encoder.tokenizer.entries if entry > 5][-tokens:]
    return [
        probe
        for token in (Token(entry, str(entry)) for entry in entries)
        for carrier, path in zip(carriers, paths.of(token), strict=True)
        for probe in insert_as_ids(token, carrier, placement, copies, path)
    ]


def counted_trees(monkeypatch) -> list[int]:
    """A list that grows by the number of inputs whenever inputs go through trees."""
    calls: list[int] = []
    run = PrefixReuse.vectors_of_trees

    def counted(self, roots, count):
        calls.append(count)
        return run(self, roots, count)

    monkeypatch.setattr(PrefixReuse, "vectors_of_trees", counted)
    return calls
