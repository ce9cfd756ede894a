"""stickytoken tune: choose the layers of token prepending, or of contrast."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from stickytoken.cli._loading import command, load
from stickytoken.cli.options.model import (
    ContrastLayer,
    ContrastRule,
    ContrastStrength,
    LoadingOptions,
    Model,
    PromptingOptions,
    Start,
)
from stickytoken.cli.options.output import (
    Format,
    OutputFormat,
    VerbosityOptions,
    language_option,
    texts_option,
)
from stickytoken.cli.output.console import print_json, print_line, print_table
from stickytoken.cli.output.progress import counted
from stickytoken.errors import InputError

if TYPE_CHECKING:
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.evaluation import Tried, Tuning
    from stickytoken.tasks.files import SimilarityTask


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """What to choose, and what to keep."""

    start: Start = None
    exit: Annotated[
        int | None,
        language_option(help="First layer that token prepending leaves alone, where it is kept."),
    ] = None
    token_prepending: Annotated[
        bool,
        language_option("--token-prepending", help="With --contrast: keep token prepending as it is given."),
    ] = False
    contrast: Annotated[
        bool, language_option("--contrast", help="Choose contrast instead of token prepending.")
    ] = False
    contrast_layer: ContrastLayer = None
    contrast_strength: ContrastStrength = None
    contrast_rule: ContrastRule = None


@command
def tune(
    model: Model,
    task: Annotated[
        Path,
        texts_option(
            help="Development set: a csv, tsv, jsonl or parquet file with sentence1, sentence2 and score."
        ),
    ],
    prompt: Annotated[
        str, language_option(help="prompteol, cot, ke, ck, metaeol, or a text with {sentence}.")
    ] = "prompteol",
    *,
    tuning: TuningOptions,
    loading: LoadingOptions,
    output_format: OutputFormat = Format.TABLE,
    verbosity: VerbosityOptions,
) -> None:
    """Choose the layers of token prepending, or of contrast, by the score on a development set.

    Example: stickytoken tune ./qwen2 --task stsb-dev.jsonl --prompt prompteol --contrast
    """
    from stickytoken.encoders.prompted.encoder import CausalPromptEncoder
    from stickytoken.encoders.prompted.prompts import find_prompt
    from stickytoken.evaluation import read_similarity

    find_prompt(prompt)  # a text without {sentence} would be put in front of every input
    prompting = _kept(prompt, tuning)
    pairs = read_similarity(task)
    encoder = load(model, loading, prompting)
    if not isinstance(encoder, CausalPromptEncoder):
        raise InputError(
            f"{model!r} is a SentenceTransformer: pass a plain language model, which "
            f"{'contrast' if tuning.contrast else 'token prepending'} needs"
        )
    found = _tuned(encoder, pairs, tuning)
    if output_format is Format.JSON:
        print_json(
            {"model": model, "task": str(task), "prompt": prompt, "pairs": pairs.units, **asdict(found)}
        )
        return
    _show(model, found)


def _kept(prompt: str, tuning: TuningOptions) -> PromptingOptions:
    """Return the options to load the model with; refuse those that would have no effect."""
    from stickytoken.encoders.prompted.prompts import require_contrast_options
    from stickytoken.encoders.protocol import Prompting

    given = Prompting(prompt, **asdict(tuning))
    require_contrast_options(given)
    if tuning.contrast:
        return PromptingOptions(
            prompt, token_prepending=tuning.token_prepending, start=tuning.start, exit=tuning.exit
        )
    if tuning.exit is not None:
        raise InputError(
            f"--exit {tuning.exit} is what tune chooses: leave it out, or keep it with --contrast "
            "--token-prepending"
        )
    return PromptingOptions(prompt)


def _tuned(encoder: CausalPromptEncoder, pairs: SimilarityTask, tuning: TuningOptions) -> Tuning:
    from stickytoken.encoders.prompted.prompts import ContrastRule as Rule
    from stickytoken.evaluation import tune as tune_prepending
    from stickytoken.evaluation import tune_contrast

    with counted("settings") as progress:
        if not tuning.contrast:
            return tune_prepending(encoder, pairs, start=tuning.start, progress=progress)
        return tune_contrast(
            encoder,
            pairs,
            layer=tuning.contrast_layer,
            strength=tuning.contrast_strength,
            rule=Rule(tuning.contrast_rule or Rule.SCALED),
            progress=progress,
        )


def _show(model: str, found: Tuning) -> None:
    """Print one row per setting with its best layer and a bar, then the choice."""
    best, plain = found.best, found.plain_at_best
    contrasting = best.contrast_layer is not None
    rows = []
    for _, setting in groupby(found.tried, _setting):
        span = [own for own in setting if own.spearman is not None]
        if not span:
            continue
        top = max(span, key=lambda own: own.spearman or 0.0)
        at_best = next((own.spearman for own in span if own.layer == best.layer), None)
        bar = "#" * max(0, round((top.spearman or 0.0) / 2))
        settings = [top.start, top.exit, top.contrast_layer, top.contrast_strength][: 4 if contrasting else 2]
        rows.append([*settings, top.layer, top.spearman, at_best, bar])
    headings = ["start", "exit", "contrast layer", "strength"][: 4 if contrasting else 2]
    columns = (*headings, "best layer", "spearman", f"at layer {best.layer}", "")
    print_table(f"{'Contrast' if contrasting else 'Token prepending'} on {model}", columns, rows)
    beside = "no defined score" if plain.spearman is None else f"{plain.spearman:.2f}"
    print_line(
        f"best: {_options(best)} --layer {best.layer} scores {best.spearman:.2f}; the plain prompt scores "
        f"{beside} at that layer, and {found.plain.spearman:.2f} at its best layer, {found.plain.layer}"
    )


def _setting(own: Tried) -> tuple[object, ...]:
    return own.start, own.exit, own.contrast_layer, own.contrast_strength


def _options(best: Tried) -> str:
    """Write a setting as options."""
    found = []
    if best.start is not None:
        found.append(f"--token-prepending --start {best.start} --exit {best.exit}")
    if best.contrast_layer is not None:
        found.append(f"--contrast --contrast-layer {best.contrast_layer}")
        found += [] if best.contrast_strength is None else [f"--contrast-strength {best.contrast_strength:g}"]
        found += [] if best.contrast_rule == "scaled" else [f"--contrast-rule {best.contrast_rule}"]
    return " ".join(found)
