"""The results of a run as a block for a model card, or as a row of the table of measured models."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stickytoken.detection.run import Run
from stickytoken.errors import InputError, RunError, reading
from stickytoken.measurement.store import require_other_file, write_atomically
from stickytoken.methods import wording
from stickytoken.methods.measures import MEASURES, Measure
from stickytoken.run_summary import Examined, RunSummary, rule_lines, short_headline
from stickytoken.validation import file_path, markdown, markdown_table
from stickytoken.words import counted, quoted

__all__ = ["card_block", "table_row", "write_block"]

BEGIN = "<!-- stickytoken:begin -->"
END = "<!-- stickytoken:end -->"


def card_block(run: Run) -> str:
    """Return the block that describes a run in a model card, with both markers but no final line break.

    The same run always gives the same block. The block contains no paths of local folders and no addresses of
    endpoints.

    Examples:
        >>> from stickytoken.model_cards import card_block
        >>> card_block(run).splitlines()[0]
        '<!-- stickytoken:begin -->'
    """
    paragraphs = [BEGIN, "## Sticky tokens", f"**{markdown(short_headline(run))}**"]
    paragraphs += _list_tokens(run)
    rows = [(name, markdown(value)) for name, value in _list_card_rows(run)]
    paragraphs.append(markdown_table(("measure", "value"), rows))
    paragraphs += [markdown(line) for line in rule_lines(run)]
    paragraphs += [
        "These numbers hold for the texts, prompt and pooling that were measured; on other texts, other "
        "tokens can matter. `stickytoken audit` measures what they do among documents of your own.",
        END,
    ]
    return "\n\n".join(paragraphs)


# Maximum number of sticky tokens that a card lists.
_LISTED = 10


def _list_tokens(run: Run) -> list[str]:
    """Return the paragraphs that list the worst sticky tokens; an empty list if no token is sticky.

    A sentence that does not name its token can apply to several tokens, so it is written only once, after the
    list.
    """
    worst = run.sticky.head(_LISTED)
    if worst.is_empty():
        return []
    items = []
    general_sentences: dict[str, None] = {}  # a set that keeps the order
    for row in worst.iter_rows(named=True):
        name = quoted(row["token"])
        thresholds = run.thresholds(row)
        sentences = wording.consequences(row, thresholds, run.harm(row["token_id"]))
        own_sentences = [sentence for sentence in sentences if name in sentence]
        general_sentences |= dict.fromkeys(sentence for sentence in sentences if name not in sentence)
        # Only profile grades the severity.
        item = f"{name} ({row.get('severity') or row['verdict']})"
        facts = _describe_measures(row)
        if facts:
            item += f": {facts}."
        items.append("- " + markdown(" ".join([item, *own_sentences])))
    heading = "The worst sticky tokens"
    if len(worst) < len(run.sticky):
        heading += f" ({len(worst)} of {len(run.sticky):,})"
    if "erased" in run.sticky.columns:  # measured by profile
        heading += (
            ". *Erased* is how much less of a text's meaning copies of the token leave than copies of an "
            "ordinary token do; *push* is the factor by which eight copies multiply a document's wrong "
            "results"
        )
    paragraphs = [f"{heading}:", "\n".join(items)]
    if general_sentences:
        paragraphs.append(markdown(f"What this means: {' '.join(general_sentences)}"))
    return paragraphs


def _describe_measures(row: Mapping[str, Any]) -> str:
    # Returns, for example, "erased 62% (58% to 66%), push 2.1× (1.8 to 2.4×)"; empty if no measure has a
    # value.
    facts = []
    for measure in MEASURES:
        value = row.get(measure.key)
        if value is None:
            continue
        text = _format_value(measure, value, row.get(measure.low.key), row.get(measure.high.key))
        facts.append(f"{measure.title} {text}")
    return ", ".join(facts)


def _format_value(measure: Measure, value: float, low: float | None, high: float | None) -> str:
    # Returns, for example, "62% (58% to 66%)".
    if low is None or high is None:
        return measure.text(value)
    return f"{measure.text(value)} ({measure.interval(low, high)})"


# The share of sticky tokens is given as a number per 10,000 examined tokens.
_PER = 10_000


def _list_card_rows(run: Run) -> list[tuple[str, str]]:
    """Return the rows of the card's table; each row has the name of a measure and its value."""
    record = run.record
    summary = RunSummary(run)
    interval_title = f"{100 * summary.confidence:.4g}% interval"
    count = f"{len(run.sticky):,} of {len(run.tokens):,} examined ({summary.examined.value})"
    rows = [("sticky tokens", count)]
    for measure in MEASURES:
        worst = summary.worst_token(measure)
        if worst is None:
            continue
        judgement = worst.severity or worst.verdict or "not judged"
        rows.append((f"token that {measure.verb} most", f"{quoted(worst.token)} ({judgement})"))
        title = f"its {measure.noun}, compared with {measure.compared_with} ({interval_title})"
        rows.append((title, _format_value(measure, worst.value, worst.low, worst.high)))
    share = summary.sticky_share
    if share is not None:  # None if the user chose which tokens the run examined
        text = f"{_PER * share.value:.1f} ({_PER * share.low:.1f} to {_PER * share.high:.1f})"
        rows.append((f"sticky per {_PER:,} (exact {interval_title})", text))
    vocabulary = f"{run.available:,} of {record.model.vocabulary:,} vocabulary entries"
    # Only the name of a local file is published, not its path.
    source = Path(record.corpus.source)
    texts = source.name if source.is_absolute() and source.name else record.corpus.source
    rows += [("available tokens", vocabulary), ("texts", texts)]
    if record.model.loading is not None and record.model.loading.prompting.prompt:  # as the user chose it
        rows.append(("prompt", record.model.loading.prompting.prompt))
    elif record.prompts is not None and record.prompts["document"]:
        rows.append(("prompt of documents", record.prompts["document"]))
    version = record.versions.get("stickytoken", "of unknown version")
    tool = f"stickytoken {version}, method {record.method}, run {record.identity[:12]}"
    rows.append(("measured", f"{record.started[:10]} with {tool}"))
    return rows


def table_row(run: Run) -> str:
    """Return the row of a run in the table of measured models, as Markdown without a line break.

    The cost is the number of encoded texts, and the time of the whole run on its device.

    Examples:
        >>> from stickytoken.model_cards import table_row
        >>> print(table_row(run))
        | all-MiniLM-L6-v2 | ... | 18 of 23,699 | ...
    """
    record = run.record
    summary = RunSummary(run)
    sticky = f"{len(run.sticky):,} of {len(run.tokens):,}"
    if summary.examined is not Examined.WHOLE:
        sticky += f" ({summary.examined.value})"
    worst_cells = []
    for measure in MEASURES:
        worst = summary.worst_token(measure)
        if worst is None:
            worst_cells.append("-")
            continue
        value = _format_value(measure, worst.value, worst.low, worst.high)
        worst_cells.append(f"{quoted(worst.token)} {value}")
    minutes = counted(max(1, round(run.result.seconds / 60)), "minute")
    device = record.hardware.get("device_name") or record.hardware["device"]
    if device == "cpu":
        threads = record.hardware["torch_threads"]
        # A run that was continued with more or fewer threads has both numbers, as "2, later 8".
        device = counted(int(threads), "CPU thread") if threads.isdecimal() else f"{threads} CPU threads"
    cells = (
        record.model.short_title,
        f"{record.started[:10]}, stickytoken {record.versions.get('stickytoken', 'of unknown version')}",
        sticky,
        *worst_cells,
        f"{run.result.sequences:,} texts, {minutes}, {device}",
    )
    return f"| {' | '.join(map(markdown, cells))} |"


def _compile_marker_line(marker: str) -> re.Pattern[bytes]:
    # The pattern of a line that consists of the marker, and of white space after it.
    return re.compile(rb"^%b[ \t]*\r?$" % re.escape(marker.encode()), re.MULTILINE)


_BEGIN_LINE = _compile_marker_line(BEGIN)
_END_LINE = _compile_marker_line(END)
# Matches the beginning of a marker, so that a damaged marker is noticed too.
_ANY_MARKER = re.compile(rb"<!--[ \t]*stickytoken:", re.IGNORECASE)


def with_block(card: bytes, block: str, name: str) -> bytes:
    """Insert a block into a model card: in place of the card's earlier block, or at the end if it has none.

    Args:
        card: the content of the card.
        block: from `card_block`.
        name: name of the card, for messages.

    Returns:
        The new content. Every byte outside the block is preserved.

    Raises:
        InputError: the card is not UTF-8, or it has markers other than one intact pair.
    """
    try:
        card.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{name} is not UTF-8 text ({error}): save it as UTF-8 first") from error
    newline = b"\r\n" if b"\r\n" in card else b"\n"
    content = block.encode("utf-8", "backslashreplace").replace(b"\n", newline)
    marker_count = len(_ANY_MARKER.findall(card))  # including damaged markers
    if marker_count:
        begins = list(_BEGIN_LINE.finditer(card))
        ends = list(_END_LINE.finditer(card))
        is_pair = len(begins) == len(ends) == 1 and marker_count == 2
        if not is_pair or begins[0].start() > ends[0].start():
            raise InputError(
                f"the stickytoken markers in {name} are damaged: the card must have exactly one line {BEGIN} "
                f"and, after it, exactly one line {END}, but has {len(begins)} and {len(ends)} such lines "
                f"and {marker_count} markers in all; fix them, or delete them together with the old block so "
                "that the new block is added at the end"
            )
        return card[: begins[0].start()] + content + card[ends[0].start() + len(END) :]
    if not card:
        return content + newline
    # Between the card and the block, there is a blank line.
    if card.endswith(2 * newline):
        gap = b""
    elif card.endswith(b"\n"):
        gap = newline
    else:
        gap = 2 * newline
    return card + gap + content + newline


def write_block(block: str, card: str | Path) -> bool:
    """Write the block into a model card, unless the card already has it. If writing fails, nothing changes.

    Args:
        block: from `card_block`.
        card: an existing model card in Markdown.

    Returns:
        Whether the file changed.

    Raises:
        InputError: there is no such file, it is a file of a run, it is not UTF-8, or it does not have exactly
            one intact pair of markers.
        RunError: the file cannot be read or written.

    Examples:
        >>> from pathlib import Path
        >>> from stickytoken.model_cards import card_block, write_block
        >>> _ = Path("README.md").write_text("# My model")
        >>> write_block(card_block(run), "README.md")
        True
    """
    path = file_path("the model card", card)
    with reading(card, RunError):
        path = path.resolve()  # write to the target of a symbolic link instead of replacing the link
        if not path.exists():
            raise InputError(f"there is no model card {card}: create the file first; it may be empty")
        require_other_file(path)
        before = path.read_bytes()
        mode = stat.S_IMODE(path.stat().st_mode)
    after = with_block(before, block, str(card))
    if after == before:
        return False
    if not os.access(path, os.W_OK):
        raise RunError(f"{card} cannot be written: it is read-only")
    write_atomically(path, after)
    path.chmod(mode)  # the mode of the file that was replaced
    return True
