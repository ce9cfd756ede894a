"""stickytoken detect: find the sticky tokens of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.corpora import chosen_sentences
from stickytoken.cli.errors import reported
from stickytoken.cli.models import chosen_encoder
from stickytoken.cli.progress import progress_bar
from stickytoken.cli.results import show_run
from stickytoken.cli.settings import chosen_settings


@reported
def detect(
    model: o.Model,
    method: o.MethodName = None,
    sentences: o.SentenceSource = None,
    column: o.Column = None,
    pairs: o.PairsFile = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            help="Look only at these tokens: txt with a token a line, or a table with token_id or token.",
            show_default=False,
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="Look at a random sample of this many tokens.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder. Default: runs/<model>-<method>-<identity>.", show_default=False),
    ] = None,
    seed: o.Seed = 42,
    insertion: o.InsertionMode = None,
    budget: Annotated[
        float | None,
        typer.Option(help="profile: texts per available token, on average. Default: 6.", show_default=False),
    ] = None,
    confidence: o.Confidence = None,
    fdr: Annotated[
        float | None,
        typer.Option(
            help="profile: false discovery rate of the verdicts. Default: 0.05.", show_default=False
        ),
    ] = None,
    smallest_effect: Annotated[
        float | None,
        typer.Option(
            help="profile: smallest lift that matters, in standard deviations of the model's similarities. "
            "Default: 0.5.",
            show_default=False,
        ),
    ] = None,
    adaptive: Annotated[
        bool | None,
        typer.Option(
            help="profile: spend more on the upper tail; --no-adaptive spends alike. Default: adaptive.",
            show_default=False,
        ),
    ] = None,
    vocabulary_share: o.VocabularyShare = None,
    copies: o.Copies = None,
    sentence_count: o.SentenceCount = None,
    pair_count: o.PairCount = None,
    scoring_pairs: Annotated[
        int | None, typer.Option(min=1, help="std: pairs that score a token. Default: 5.", show_default=False)
    ] = None,
    validation_pairs: o.ValidationPairs = None,
    candidate_share: Annotated[
        float | None,
        typer.Option(help="std: share of the tokens that is validated. Default: 0.02.", show_default=False),
    ] = None,
    outlier_range: Annotated[
        float | None,
        typer.Option(min=0, help="std: sticky above Q3 + this x IQR. Default: 0.7.", show_default=False),
    ] = None,
    device: o.Device = None,
    dtype: o.Dtype = "float32",
    prompt: o.Prompt = None,
    prompt_name: o.PromptName = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    token_budget: o.TokenBudget = None,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Find the sticky tokens of a model. The same command continues a run that was cut off.

    Example: stickytoken detect all-MiniLM-L6-v2 --sample 300
    """
    from stickytoken.runs import detect as run_detection
    from stickytoken.runs.selection import token_ids_from_file
    from stickytoken.vocabulary import categorize

    settings = chosen_settings(
        method,
        pairs,
        {
            "budget": budget,
            "confidence": confidence,
            "fdr": fdr,
            "smallest_effect": smallest_effect,
            "adaptive": adaptive,
            "vocabulary_share": vocabulary_share,
            "sentences": sentence_count,
            "pairs": pair_count,
            "scoring_pairs": scoring_pairs,
            "validation_pairs": validation_pairs,
            "copies": copies,
            "insertion": insertion,
            "candidate_share": candidate_share,
            "outlier_range": outlier_range,
            "seed": seed,
        },
    )
    corpus = chosen_sentences(sentences, column, pairs)
    encoder = chosen_encoder(
        model,
        device=device,
        dtype=dtype,
        prompt=prompt,
        prompt_name=prompt_name,
        revision=revision,
        trust_remote_code=trust_remote_code,
        token_budget=token_budget,
    )
    ids = token_ids_from_file(categorize(encoder.tokenizer), tokens) if tokens else None
    with progress_bar() as progress:
        run = run_detection(
            encoder,
            sentences=corpus,
            pairs=pairs,
            tokens=ids,
            sample=sample,
            settings=settings,
            out=out,
            progress=progress,
        )
    show_run(run, output_format)
