"""Write the results of a run into a model card, or as evaluation results in the format of the hub."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken import comparisons
from stickytoken.detection.run import Run
from stickytoken.errors import InputError, RunError, reading
from stickytoken.measurement import make_folder, write_atomically
from stickytoken.methods import wording
from stickytoken.methods.measures import ERASED, MEASURES, PUSH
from stickytoken.validation import file_path, markdown, markdown_table, shown
from stickytoken.words import counted, quoted

if TYPE_CHECKING:
    from huggingface_hub import EvalResultEntry


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
    paragraphs = [BEGIN, "## Sticky tokens", f"**{markdown(comparisons.short_headline(run))}**"]
    paragraphs += _list_tokens(run)
    rows = [(name, markdown(value)) for name, value in _list_card_rows(run)]
    paragraphs.append(markdown_table(("measure", "value"), rows))
    paragraphs += [markdown(line) for line in comparisons.rule_lines(run)]
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
    # Such as "erased 62% (58% to 66%), push 2.1× (1.8 to 2.4×)"; empty without any of the measures.
    facts = []
    for measure in MEASURES:
        value = row.get(measure.key)
        if value is None:
            continue
        fact = f"{measure.title} {measure.text(value)}"
        low = row.get(f"{measure.key}_low")
        high = row.get(f"{measure.key}_high")
        if low is not None and high is not None:
            fact += f" ({measure.interval(low, high)})"
        facts.append(fact)
    return ", ".join(facts)


def _list_card_rows(run: Run) -> list[tuple[str, str]]:
    """Return the rows of the card's table; each row has the name of a measure and its value."""
    record = run.record
    compared = comparisons.ComparedRun(record.model.short_title, run)  # the numbers that a comparison shows
    interval_title = f"{100 * compared.confidence:.4g}% interval"
    count = f"{len(run.sticky):,} of {len(run.tokens):,} examined ({compared.examined.value})"
    rows = [("sticky tokens", count)]
    for measure in MEASURES:
        largest = compared.largest(measure)
        if largest is not None:
            rows.append((f"token that {measure.verb} most", comparisons.shown_token(largest)))
            title = f"its {measure.noun}, compared with an ordinary token ({interval_title})"
            rows.append((title, comparisons.shown_value(measure, largest)))
    if compared.share is not None:  # not if the run examined only some tokens, chosen by the user
        rows.append((f"sticky per 10,000 (exact {interval_title})", comparisons.shown_share(compared)))
    vocabulary = f"{run.available:,} of {record.model.vocabulary:,} vocabulary entries"
    # Of a local file, only the name is published.
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
    compared = comparisons.ComparedRun(record.model.short_title, run)
    is_whole = compared.examined is comparisons.Examined.WHOLE
    sticky = f"{len(run.sticky):,} of {len(run.tokens):,}"
    largest_cells = []
    for measure in MEASURES:
        largest = compared.largest(measure)
        if largest is None:
            largest_cells.append("-")
            continue
        cell = f"{quoted(largest.token)} {measure.text(largest.value)}"
        if largest.low is not None and largest.high is not None:
            cell += f" ({measure.interval(largest.low, largest.high)})"
        largest_cells.append(cell)
    minutes = counted(max(1, round(run.result.seconds / 60)), "minute")
    device = record.hardware.get("device_name") or record.hardware["device"]
    if device == "cpu":
        device = counted(int(record.hardware["torch_threads"]), "CPU thread")
    cells = (
        record.model.short_title,
        f"{record.started[:10]}, stickytoken {record.versions.get('stickytoken', 'of unknown version')}",
        sticky if is_whole else f"{sticky} ({compared.examined.value})",
        *largest_cells,
        f"{run.result.sequences:,} texts, {minutes}, {device}",
    )
    return f"| {' | '.join(map(markdown, cells))} |"


def _compile_marker_line(marker: str) -> re.Pattern[bytes]:
    # The marker at the beginning of a line, and at most white space after it.
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
    markers = len(_ANY_MARKER.findall(card))  # damaged ones too
    if markers:
        begins = list(_BEGIN_LINE.finditer(card))
        ends = list(_END_LINE.finditer(card))
        is_pair = len(begins) == len(ends) == 1 and markers == 2
        if not is_pair or begins[0].start() > ends[0].start():
            raise InputError(
                f"the stickytoken markers in {name} are damaged: the card must have exactly one line {BEGIN} "
                f"and, after it, exactly one line {END}, but has {len(begins)} and {len(ends)} such lines "
                f"and {markers} markers in all; fix them, or delete them together with the old block so that "
                "the new block is added at the end"
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
        InputError: there is no such file, it is not UTF-8, or it does not have exactly one intact pair of
            markers.
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
        before = path.read_bytes()
        mode = stat.S_IMODE(path.stat().st_mode)
    after = with_block(before, block, str(card))
    if after == before:
        return False
    if not os.access(path, os.W_OK):
        raise RunError(f"{card} cannot be written: it is read-only")
    write_atomically(path, after)
    path.chmod(mode)  # of the file that the new one has replaced
    return True


# For each measure, the name of the task that its largest value is published under, and its unit in words.
_TASKS = {
    ERASED: (
        "sticky_tokens_worst_erased",
        "how much less of a text's meaning copies leave than copies of an ordinary token",
    ),
    PUSH: (
        "sticky_tokens_worst_push",
        "times as many wrong results as without copies",
    ),
}
SHARE_TASK = "sticky_tokens_per_10000"


def eval_results(run: Run, dataset: str) -> list[EvalResultEntry]:
    """Return the largest erased share, the largest push and the share of sticky tokens, in the hub's format.

    Args:
        run: the run.
        dataset: id of the benchmark data set on the hub.

    Returns:
        One entry for each of the three values that the run has. The notes of an entry name the unit and the
        interval of the value. The share is a number per 10,000 examined tokens.

    Raises:
        InputError: the data set is not a valid hub id, or the run has no value to publish.
    """
    from huggingface_hub import EvalResultEntry

    _require_hub_id(dataset)
    compared = comparisons.ComparedRun(run.model_title, run)
    interval_title = f"{100 * compared.confidence:.4g}% interval"
    basis = f"{len(run.tokens)} of {run.available} available tokens, method {run.record.method}"
    results: list[tuple[str, float, str]] = []  # task, value and note
    for measure, (task, unit) in _TASKS.items():
        largest = compared.largest(measure)
        if largest is not None:
            note = f"{unit}: {comparisons.shown_value(measure, largest)}, {interval_title}"
            results.append((task, largest.value, note))
    if compared.share is not None:
        note = f"{comparisons.shown_share(compared)}, exact {interval_title}"
        sticky_per_10000 = comparisons.PER * compared.share.value
        results.append((SHARE_TASK, sticky_per_10000, note))
    if not results:
        raise InputError(
            f"the run in {run.path} has no value to publish: detect with --method profile, or examine the "
            "whole vocabulary"
        )
    return [
        EvalResultEntry(dataset, task, round(value, 4), date=run.record.started, notes=f"{note}; {basis}")
        for task, value, note in results
    ]


def _require_hub_id(dataset: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(dataset)
    except HFValidationError as error:
        raise InputError(f"the data set {shown(dataset)} is not a valid hub id: pass owner/name") from error


def write_eval_results(run: Run, dataset: str, path: str | Path) -> bool:
    """Write the evaluation results of a run to a separate file. If writing fails, nothing changes.

    Args:
        run: the run.
        dataset: id of the benchmark data set on the hub.
        path: path of the YAML file, by convention in a folder `.eval_results`. The folder is created if
            needed.

    Returns:
        Whether the file changed.

    Raises:
        InputError: the data set is not a valid hub id, the run has no value to publish, or the file holds
            entries of other tasks.
        RunError: the file cannot be read or written.

    Examples:
        >>> from stickytoken.model_cards import write_eval_results
        >>> write_eval_results(run, "me/my-benchmark", "results.yaml")
        True
    """
    import yaml
    from huggingface_hub import eval_result_entries_to_yaml, parse_eval_result_entries

    target = file_path("the file of evaluation results", path)
    entries = eval_result_entries_to_yaml(eval_results(run, dataset))
    content = yaml.safe_dump(entries, sort_keys=False, width=1000).encode()  # notes are not wrapped
    with reading(target, RunError):
        before = target.read_bytes() if target.exists() else b""
    if before == content:
        return False
    try:
        entries_before = yaml.safe_load(before) or []  # None if the file is empty or does not exist
        tasks = {entry.task_id for entry in parse_eval_result_entries(entries_before)}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{target} does not contain evaluation results: choose another file for the results of "
            "stickytoken"
        ) from error
    own_tasks = {SHARE_TASK, *(task for task, _ in _TASKS.values())}
    other_tasks = sorted(tasks - own_tasks)
    if other_tasks:
        others = ", ".join(map(shown, other_tasks))
        raise InputError(
            f"{target} holds other results ({others}): choose another file for the results of stickytoken"
        )
    make_folder(target.parent)
    write_atomically(target, content)
    return True


__all__ = ["card_block", "table_row", "write_block", "write_eval_results"]
