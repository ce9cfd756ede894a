"""stickytoken detect: find the sticky tokens of a model."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from stickytoken.cli import options as o
from stickytoken.cli.corpora import chosen_sentences
from stickytoken.cli.detection_options import CorpusOptions, EngineOptions
from stickytoken.cli.engines import chosen_engine
from stickytoken.cli.errors import reported_and_continued
from stickytoken.cli.method_options import MethodOptions, method_options
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, load, spread
from stickytoken.cli.progress import progress_bar
from stickytoken.cli.reports import finish_run
from stickytoken.cli.selection import chosen_tokens


@reported_and_continued
@spread
def detect(
    model: o.Model,
    *,
    corpus: CorpusOptions,
    tokens: o.TokensFile = None,
    sample: o.Sample = None,
    out: o.RunFolderPath = None,
    method: Annotated[MethodOptions, method_options(probe=False)],
    loading: LoadingOptions,
    prompting: PromptingOptions,
    computing: EngineOptions,
    write_report: o.WriteReport = True,
    output_format: o.OutputFormat = o.Format.TABLE,
) -> None:
    """Find the sticky tokens of a model. The same command continues a run that was cut off.

    Example: stickytoken detect all-MiniLM-L6-v2 --sample 300
    """
    from stickytoken.detection import detect as run_detection

    engine = chosen_engine(**asdict(computing))
    settings = method.settings(corpus.pairs)
    sentences = chosen_sentences(**asdict(corpus))
    encoder = load(model, loading, prompting)
    with progress_bar() as progress:
        run = run_detection(
            encoder,
            sentences=sentences,
            pairs=corpus.pairs,
            tokens=chosen_tokens(encoder, tokens),
            sample=sample,
            settings=settings,
            out=out,
            engine=engine,
            evidence=write_report,
            progress=progress,
        )
    finish_run(run, output_format, write_report)
