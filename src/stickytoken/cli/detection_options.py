"""Options of the methods of detection, in groups."""

from __future__ import annotations

from dataclasses import dataclass

from stickytoken.cli import options as o


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """What carriers, anchors and pairs are made from."""

    sentences: o.SentenceSource = None
    column: o.Column = None
    pairs: o.PairsFile = None


@dataclass(frozen=True, slots=True)
class ProfileOptions:
    """Settings of the method profile; None is its default."""

    budget: o.Budget = None
    confidence: o.Confidence = None
    fdr: o.FalseDiscoveryRate = None
    smallest_effect: o.SmallestEffect = None
    adaptive: o.Adaptive = None
    vocabulary_share: o.VocabularyShare = None
    screen_precision: o.ScreenPrecision = None


@dataclass(frozen=True, slots=True)
class StdOptions:
    """Settings of the method std; None is its default."""

    copies: o.Copies = None
    sentence_count: o.SentenceCount = None
    pair_count: o.PairCount = None
    scoring_pairs: o.ScoringPairs = None
    validation_pairs: o.ValidationPairs = None
    candidate_share: o.CandidateShare = None
    outlier_range: o.OutlierRange = None


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Where shards are computed."""

    engine: o.EngineName = o.Engine.LOCAL
    ray_address: o.RayAddress = None
    workers: o.Workers = None
