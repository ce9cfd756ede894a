"""stickytoken probe: validation evidence for named tokens."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stickytoken.cli import options as o
from stickytoken.cli.corpora import chosen_sentences
from stickytoken.cli.errors import reported
from stickytoken.cli.output import print_json, print_table, say, status
from stickytoken.cli.progress import progress_bar
from stickytoken.cli.quiet import quiet_libraries
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion

if TYPE_CHECKING:
    from stickytoken.runs import Evidence


@reported
def probe(
    model: o.Model,
    tokens: Annotated[
        list[str], typer.Argument(help="Vocabulary strings or texts of tokens.", show_default=False)
    ],
    ids: Annotated[bool, typer.Option("--ids", help="The arguments are token ids.")] = False,
    sentences: o.SentenceSource = None,
    column: o.Column = None,
    pairs: o.PairsFile = None,
    seed: o.Seed = 42,
    insertion: o.InsertionMode = Insertion.TEXT,
    copies: o.Copies = 8,
    sentence_count: o.SentenceCount = 1000,
    pair_count: o.PairCount = 1000,
    validation_pairs: o.ValidationPairs = 250,
    device: o.Device = None,
    dtype: o.Dtype = "float32",
    prompt: o.Prompt = None,
    prompt_name: o.PromptName = None,
    revision: o.Revision = None,
    trust_remote_code: o.TrustRemoteCode = False,
    token_budget: o.TokenBudget = None,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Show how often named tokens raise the similarity of unrelated sentences.

    Example: stickytoken probe all-MiniLM-L6-v2 trajectory the --validation-pairs 50
    """
    from stickytoken.detection.std.settings import StdSettings
    from stickytoken.encoders import load_encoder
    from stickytoken.runs import probe as run_probe
    from stickytoken.runs.selection import find_token
    from stickytoken.vocabulary import categorize

    settings = StdSettings(
        sentences=sentence_count,
        pairs=pair_count,
        validation_pairs=validation_pairs,
        copies=copies,
        insertion=insertion,
        seed=seed,
    )
    numbers = [_token_id(token) for token in tokens] if ids else []
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
        vocabulary = categorize(encoder.tokenizer)
    wanted = numbers or [find_token(vocabulary, token) for token in tokens]
    with progress_bar() as progress:
        evidence = run_probe(
            encoder,
            vocabulary,
            wanted,
            sentences=corpus,
            pairs=pairs,
            settings=settings,
            progress=progress,
        )
    if output_format is o.Format.JSON:
        print_json([asdict(each) for each in evidence])
    else:
        _print(evidence)


def _print(evidence: list[Evidence]) -> None:
    print_table(
        "Validation rate: share of unrelated pairs that the token pulls together",
        ("id", "token", "category", "rate", "prefix", "suffix", "random", "lift"),
        [
            (
                each.token_id,
                each.token,
                each.category,
                each.validation_rate["cosine"],
                *(each.by_placement[place]["cosine"] for place in ("prefix", "suffix", "random")),
                each.lift,
            )
            for each in evidence
        ],
    )
    say(
        f"{evidence[0].pairs} pairs below the model's mean similarity; lift is the mean rise of the cosine. "
        "Compare with the rates of ordinary tokens: no rate is high or low by itself."
    )


def _token_id(token: str) -> int:
    try:
        return int(token)
    except ValueError:
        raise InputError(f"{token!r} is no token id: leave --ids out to name tokens by text") from None
