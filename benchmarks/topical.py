"""Which measure tells a sticky token from a word that the corpus is about?

python benchmarks/topical.py     # a few minutes on 2 CPU cores

Planted tokens are sticky by construction; the topical words are what the paper's sentences, with
much news in them, are about. Every measure is standardised by the median and the median absolute
deviation of random tokens; a measure separates where the worst planted token lies above the best
topical word, and above the random tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from checks import Check, show, write
from planted import PLANTED, TOPICAL, planted_encoder
from published import PUBLISHED
from reliability import paper_sentences
from stickytoken.corpora import load_sentences
from stickytoken.corpora.corpus import open_ended
from stickytoken.encoders import IdEncoder, analyze_vocabulary
from stickytoken.encoders.mean_similarity import mean_similarity
from stickytoken.insertion import Placement, Token, TokenizedText, copies_as_ids
from stickytoken.methods.profile.clusters import cluster

CARRIERS, COPIES, CLUSTERS, ENTRIES, RANDOM_TOKENS = 24, 8, 24, 400, 400
# Planted tokens below this lift are not expected to be found.
LEAST_LIFT = 0.045

Array = NDArray[np.float64]


def responses(encoder: IdEncoder, tokens: list[Token], anchors: Array, u: float) -> tuple[Array, Array]:
    """What copies of each token do to the similarities of carriers and anchors.

    Returns:
        Mean lift on each anchor, over carriers with similarity below u, shape (T, A); and mean
        contraction, 1 - slope of similarity after on before over all anchors, shape (T,).
    """
    texts = [open_ended(text) for text in sorted(load_sentences().texts, key=len)[:CARRIERS]]
    carriers: list[TokenizedText] = encoder.tokenize(texts)
    total, pairs = np.zeros((len(tokens), len(anchors))), np.zeros(len(anchors))
    contraction = np.zeros(len(tokens))
    for carrier, clean in zip(carriers, unit(encoder.encode(texts)), strict=True):
        before = anchors @ clean
        below = before < u
        probes = [copies_as_ids(token, carrier, Placement.SUFFIX, COPIES) for token in tokens]
        change = unit(encoder.encode_ids(probes)) @ anchors.T - before
        centred = before - before.mean()
        contraction -= change @ centred / (centred @ centred) / CARRIERS
        total += np.where(below, change, 0.0)
        pairs += below
    found: Array = total[:, pairs > 0] / pairs[pairs > 0]
    return found, contraction


def measures(
    sentences: Array,
    entries: Array,
    contraction: Array,
    own: Array,
    groups: NDArray[np.intp],
    entry_groups: NDArray[np.intp],
) -> dict[str, Array]:
    """The candidates, each of shape (T,); larger is stickier.

    Args:
        sentences: lifts on sentences, shape (T, A).
        entries: lifts on vocabulary entries, shape (T, E).
        contraction: over sentences and entries, shape (T,).
        own: similarity of the token alone to the sentences, shape (T, A).
        groups: cluster of each sentence.
        entry_groups: cluster of each entry.
    """
    excess = sentences - np.median(sentences, axis=0)
    by_group = group_means(excess, groups)
    everywhere = np.hstack([by_group, group_means(entries - np.median(entries, axis=0), entry_groups)])
    mean_lift = (3 * entries.mean(axis=1) + sentences.mean(axis=1)) / 4
    unrelated = own <= np.median(own, axis=1, keepdims=True)
    return {
        "mean lift on sentences": excess.mean(axis=1),
        "10 % quantile over clusters of sentences": np.quantile(by_group, 0.1, axis=1),
        "mean lift on the sentences least similar to the token": np.nanmean(
            np.where(unrelated, excess, np.nan), axis=1
        ),
        "regression on the token's own similarity, at its 10 % quantile": np.array(
            [np.polyval(np.polyfit(x, y, 1), np.quantile(x, 0.1)) for x, y in zip(own, excess, strict=True)]
        ),
        "mean lift on vocabulary entries": entries.mean(axis=1),
        "25 % quantile over clusters of sentences and entries": np.quantile(everywhere, 0.25, axis=1),
        "mean lift, entries 3/4 and sentences 1/4": mean_lift,
        "contraction": contraction,
        "pull: that lift and half as much contraction": mean_lift
        + contraction / 2 * robust_spread(mean_lift) / robust_spread(contraction),
    }


def robust_spread(values: Array) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def group_means(values: Array, groups: NDArray[np.intp]) -> Array:
    return np.stack([values[:, groups == group].mean(axis=1) for group in np.unique(groups)], axis=1)


def unit(vectors: NDArray[np.float32]) -> Array:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rows", type=Path, default=PLANTED, help=".npz of rows; the .csv lies beside it")
    parser.add_argument("--published", type=Path, default=PUBLISHED, help="folder of the published tables")
    parser.add_argument("--device", default=None)
    parser.add_argument("--name", default="topical", help="name of the result file")
    arguments = parser.parse_args()
    encoder = planted_encoder(arguments.rows, 1.0, arguments.device)
    truth = pl.read_csv(arguments.rows.with_suffix(".csv")).filter(pl.col("planted_lift") >= LEAST_LIFT)
    vocabulary = analyze_vocabulary(encoder)
    available = {token.id: token for token in vocabulary.available}
    names = dict(zip(vocabulary.tokens, vocabulary.ids, strict=True))
    planted = truth["token_id"].to_list()
    topical = [names[name] for name in (*TOPICAL, "situation", "sentence")]
    order = np.random.default_rng(0).permutation([k for k in available if k not in {*planted, *topical}])
    ordinary, drawn = order[:RANDOM_TOKENS].tolist(), order[RANDOM_TOKENS : RANDOM_TOKENS + ENTRIES].tolist()
    tokens = [available[k] for k in (*planted, *topical, *ordinary)]
    u = mean_similarity(encoder).value
    alone = unit(encoder.encode([token.text for token in tokens]))
    entries = unit(encoder.encode([available[k].text for k in drawn]))
    checks = []
    for name, corpus in (("paper", paper_sentences(arguments.published)), ("bundled", load_sentences())):
        fitting = [
            text
            for text, ids in zip(corpus.texts, encoder.tokenize(corpus.texts), strict=True)
            if encoder.fits(ids.ids)
        ]
        anchors = unit(encoder.encode(fitting))
        on_sentences, contracted = responses(encoder, tokens, anchors, u)
        on_entries, contracted_entries = responses(encoder, tokens, entries, u)
        found = measures(
            on_sentences,
            on_entries,
            (3 * contracted_entries + contracted) / 4,
            alone @ anchors.T,
            cluster(anchors.astype(np.float32), CLUSTERS, 0),
            cluster(entries.astype(np.float32), CLUSTERS, 0),
        )
        checks += [row(f"{name}: {measure}", x, len(planted), len(topical)) for measure, x in found.items()]
    write(checks, arguments.name, encoder.device)
    show(checks, arguments.name)


def row(name: str, values: Array, planted: int, topical: int) -> Check:
    """Worst planted token, best topical word, best random token, in robust deviations."""
    ordinary = values[planted + topical :]
    center = np.median(ordinary)
    standard = (values - center) / (1.4826 * robust_spread(ordinary))
    worst, best = float(standard[:planted].min()), float(standard[planted : planted + topical].max())
    other = float(np.sort(standard[planted + topical :])[-2:].min())
    return Check(
        name,
        "planted above topical and random",
        f"planted from {worst:.1f}, topical to {best:.1f}, random to {other:.1f}",
        worst > max(best, other),
        {"planted": worst, "topical": best, "random_second": other},
    )


if __name__ == "__main__":
    main()
