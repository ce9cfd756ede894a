"""The block of a model card: what a run found, in Markdown between two markers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stickytoken.comparisons.compared_run import ComparedRun, short_headline, short_name
from stickytoken.comparisons.result import shown_copies, shown_deviations, shown_share, shown_worst
from stickytoken.detection.run import Run
from stickytoken.visible_text import markdown, markdown_table

BEGIN = "<!-- stickytoken:begin -->"
END = "<!-- stickytoken:end -->"
_MOST_TOKENS = 10


def card_block(run: Run) -> str:
    """Return the block, from marker to marker, without a line break at its end.

    The same run gives the same block. Local folders and addresses of endpoints are left out.
    """
    name = short_name(run)
    rows = [(what, markdown(value)) for what, value in _rows(ComparedRun(name, run))]
    parts = [
        BEGIN,
        "## Sticky tokens",
        markdown(short_headline(run)),
        markdown_table(("measure", "value"), rows),
        *_flagged(run),
        "A sticky token is a vocabulary entry whose copies draw unrelated texts together, whatever the texts "
        "say. These numbers hold for the texts, prompt and pooling that were measured; on other texts, other "
        "tokens can matter. `stickytoken judge` measures a run on texts of your own.",
        END,
    ]
    return "\n\n".join(parts)


def _rows(each: ComparedRun) -> Iterator[tuple[str, str]]:
    run, record = each.run, each.run.record
    level = f"{100 * each.confidence:.4g}%"
    yield "worst token", shown_worst(each)
    if each.worst is not None and each.worst.deviations is not None:
        yield (
            f"its lift beyond an ordinary token's, in standard deviations of similarities ({level} interval)",
            shown_deviations(each),
        )
    if each.copies is not None:
        yield "its copies until the lift is serious", shown_copies(each.copies)
    yield "sticky tokens", f"{len(run.sticky):,} of {len(run.tokens):,} examined ({each.examined.value})"
    if each.share is not None:
        yield f"sticky per 10,000 (exact {level} interval)", shown_share(each)
    yield "available tokens", f"{run.available:,} of {record.model.vocabulary:,} vocabulary entries"
    yield "texts", _source(record.corpus.source)
    loading = record.model.loading
    if loading is not None and loading.prompt:
        yield "prompt", loading.prompt
    version = record.versions.get("stickytoken", "of unknown version")
    by = f"stickytoken {version}, method {record.method}, run {record.identity[:12]}"
    yield "measured", f"{record.started[:10]} with {by}"


def _flagged(run: Run) -> list[str]:
    """Name the worst sticky tokens, if there are several."""
    named = [markdown(repr(token)) for token in run.sticky["token"].head(_MOST_TOKENS)]
    if len(named) < 2:
        return []
    more = len(run.sticky) - len(named)
    return [f"The worst sticky tokens: {', '.join(named)}{f' and {more:,} more' if more else ''}."]


def _source(source: str) -> str:
    """Return where the texts come from, without local folders."""
    path = Path(source)
    return path.name if path.is_absolute() and path.name else source
