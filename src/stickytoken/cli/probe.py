"""stickytoken probe: evidence for named tokens."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, cast

import typer

from stickytoken.cli import options as o
from stickytoken.cli.corpora import chosen_sentences
from stickytoken.cli.detection_options import CorpusOptions
from stickytoken.cli.errors import reported
from stickytoken.cli.evidence import print_profiles, print_rates
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, load, spread
from stickytoken.cli.output import print_json
from stickytoken.cli.progress import progress_bar
from stickytoken.cli.settings import chosen_settings

if TYPE_CHECKING:
    from stickytoken.detection import Evidence, ProfileEvidence


@reported
@spread
def probe(
    model: o.Model,
    tokens: Annotated[
        list[str], typer.Argument(help="Vocabulary strings or texts of tokens.", show_default=False)
    ],
    ids: Annotated[bool, typer.Option("--ids", help="The arguments are token ids.")] = False,
    method: o.MethodName = None,
    *,
    corpus: CorpusOptions,
    seed: o.Seed = 42,
    insertion: o.InsertionMode = None,
    confidence: o.Confidence = None,
    vocabulary_share: o.VocabularyShare = None,
    copies: o.Copies = None,
    sentence_count: o.SentenceCount = None,
    pair_count: o.PairCount = None,
    validation_pairs: o.ValidationPairs = None,
    loading: LoadingOptions,
    prompting: PromptingOptions,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Show how far named tokens pull unrelated sentences together.

    Example: stickytoken probe all-MiniLM-L6-v2 trajectory river the
    """
    from stickytoken.detection import probe as run_probe
    from stickytoken.detection.selection import find_token
    from stickytoken.methods.std.settings import StdSettings
    from stickytoken.vocabulary.categories import categorize

    settings = chosen_settings(
        method,
        corpus.pairs,
        confidence=confidence,
        vocabulary_share=vocabulary_share,
        sentence_count=sentence_count,
        pair_count=pair_count,
        validation_pairs=validation_pairs,
        copies=copies,
        insertion=insertion,
        seed=seed,
    )
    numbers = [o.token_id(token) for token in tokens] if ids else []
    sentences = chosen_sentences(**asdict(corpus))
    encoder = load(model, loading, prompting)
    vocabulary = categorize(encoder.tokenizer)
    wanted = numbers or [find_token(vocabulary, token) for token in tokens]
    with progress_bar() as progress:
        evidence = run_probe(
            encoder,
            vocabulary,
            wanted,
            sentences=sentences,
            pairs=corpus.pairs,
            settings=settings,
            progress=progress,
        )
    if output_format is o.Format.JSON:
        print_json([asdict(each) for each in evidence])
    elif isinstance(settings, StdSettings):
        print_rates(cast("list[Evidence]", evidence))
    else:
        print_profiles(cast("list[ProfileEvidence]", evidence))
