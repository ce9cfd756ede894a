"""stickytoken detect: find the sticky tokens of a model."""

from __future__ import annotations

from stickytoken.cli import options as o
from stickytoken.cli.corpora import chosen_sentences
from stickytoken.cli.engines import chosen_engine
from stickytoken.cli.errors import reported
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, load, spread
from stickytoken.cli.progress import progress_bar
from stickytoken.cli.reports import finish_run
from stickytoken.cli.selection import chosen_tokens
from stickytoken.cli.settings import chosen_settings


@reported
@spread
def detect(
    model: o.Model,
    method: o.MethodName = None,
    sentences: o.SentenceSource = None,
    column: o.Column = None,
    pairs: o.PairsFile = None,
    tokens: o.TokensFile = None,
    sample: o.Sample = None,
    out: o.RunFolderPath = None,
    seed: o.Seed = 42,
    insertion: o.InsertionMode = None,
    budget: o.Budget = None,
    confidence: o.Confidence = None,
    fdr: o.FalseDiscoveryRate = None,
    smallest_effect: o.SmallestEffect = None,
    adaptive: o.Adaptive = None,
    vocabulary_share: o.VocabularyShare = None,
    screen_precision: o.ScreenPrecision = None,
    copies: o.Copies = None,
    sentence_count: o.SentenceCount = None,
    pair_count: o.PairCount = None,
    scoring_pairs: o.ScoringPairs = None,
    validation_pairs: o.ValidationPairs = None,
    candidate_share: o.CandidateShare = None,
    outlier_range: o.OutlierRange = None,
    *,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    engine: o.EngineName = o.Engine.LOCAL,
    ray_address: o.RayAddress = None,
    workers: o.Workers = None,
    write_report: o.WriteReport = True,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Find the sticky tokens of a model. The same command continues a run that was cut off.

    Example: stickytoken detect all-MiniLM-L6-v2 --sample 300
    """
    from stickytoken.runs import detect as run_detection

    engine_choice = chosen_engine(engine, ray_address, workers)
    settings = chosen_settings(
        method,
        pairs,
        budget=budget,
        confidence=confidence,
        fdr=fdr,
        smallest_effect=smallest_effect,
        adaptive=adaptive,
        vocabulary_share=vocabulary_share,
        screen_precision=screen_precision,
        sentences=sentence_count,
        pairs=pair_count,
        scoring_pairs=scoring_pairs,
        validation_pairs=validation_pairs,
        copies=copies,
        insertion=insertion,
        candidate_share=candidate_share,
        outlier_range=outlier_range,
        seed=seed,
    )
    corpus = chosen_sentences(sentences, column, pairs)
    encoder = load(model, loading, prompting)
    with progress_bar() as progress:
        run = run_detection(
            encoder,
            sentences=corpus,
            pairs=pairs,
            tokens=chosen_tokens(encoder, tokens),
            sample=sample,
            settings=settings,
            out=out,
            engine=engine_choice,
            evidence=write_report,
            progress=progress,
        )
    finish_run(run, output_format, write_report)
