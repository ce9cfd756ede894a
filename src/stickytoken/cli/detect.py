"""stickytoken detect: find the sticky tokens of a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.corpora import chosen_sentences
from stickytoken.cli.errors import reported
from stickytoken.cli.output import print_json, status
from stickytoken.cli.progress import progress_bar
from stickytoken.cli.quiet import quiet_libraries
from stickytoken.cli.results import print_run
from stickytoken.insertion import Insertion


@reported
def detect(
    model: o.Model,
    method: Annotated[o.Method, typer.Option(help="std: the method of Chen et al. 2025.")] = o.Method.STD,
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
    insertion: o.InsertionMode = Insertion.TEXT,
    copies: o.Copies = 8,
    sentence_count: o.SentenceCount = 1000,
    pair_count: o.PairCount = 1000,
    scoring_pairs: Annotated[int, typer.Option(min=1, help="Pairs that score a token.")] = 5,
    validation_pairs: o.ValidationPairs = 250,
    candidate_share: Annotated[float, typer.Option(help="Share of the tokens that is validated.")] = 0.02,
    outlier_range: Annotated[float, typer.Option(min=0, help="Sticky above Q3 + this x IQR.")] = 0.7,
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
    from stickytoken.detection.std.settings import StdSettings
    from stickytoken.encoders import load_encoder
    from stickytoken.runs import detect as run_detection
    from stickytoken.runs.selection import token_ids_from_file
    from stickytoken.vocabulary import categorize

    settings = StdSettings(
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
    quiet_libraries()
    with status(f"loading {model}"):
        encoder = load_encoder(
            model,
            device=device,
            prompt=prompt,
            prompt_name=prompt_name,
            dtype=dtype,
            revision=revision,
            trust_remote_code=trust_remote_code,
            token_budget=token_budget,
        )
    ids = token_ids_from_file(categorize(encoder.tokenizer), tokens) if tokens else None
    with progress_bar() as progress:
        run = run_detection(
            encoder,
            method=method.value,
            sentences=corpus,
            pairs=pairs,
            tokens=ids,
            sample=sample,
            settings=settings,
            out=out,
            progress=progress,
        )
    if output_format is o.Format.JSON:
        print_json(run.summary())
    else:
        print_run(run)
