"""stickytoken detect, judge and probe: find and measure the sticky tokens of a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import stickytoken
from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.cli.commands import runs
from stickytoken.errors import InputError, MissingExtraError
from stickytoken.methods import MethodEntry, Option, registry

if TYPE_CHECKING:
    from stickytoken.data import Sentences
    from stickytoken.methods.base import MethodSettings


@dataclass(frozen=True)
class CorpusOptions:
    """What carriers, anchors and pairs are made from.

    Attributes:
        sentences: A txt, csv, tsv, jsonl or parquet file, hub:REPOSITORY or hub:REPOSITORY@SPLIT, or paper.
            Default: the bundled corpus.
        pairs: File of pairs (sentence1, sentence2, similarity) to use instead of sampled ones.
    """

    sentences: opt.Texts[str | None] = None
    column: opt.SentencesColumn = None
    pairs: opt.Setting[Path | None] = None

    def read(self) -> Sentences | None:
        if self.pairs is None or self.sentences is not None:
            return stickytoken.load_sentences(self.sentences, self.column)
        if self.column is not None:
            raise InputError(
                f"--column {self.column!r} is given without --sentences: pairs have the columns sentence1, "
                "sentence2 and similarity; leave --column out, or pass --sentences in place of the pairs"
            )
        return None  # pairs take its place


@dataclass(frozen=True)
class MethodOptions:
    """What the user sets of the method; subclasses have a field for every option."""

    def settings(self, pairs_file: Path | None, texts_only: bool = False) -> MethodSettings:
        from stickytoken.methods.base import adjusted_defaults

        said = {each.name: getattr(self, each.name) for each in fields(self)}
        method = said.pop("method")
        entry = registry.entry_of(None if method is None else str(method), pairs_file is not None)
        known = {option.name: option for option in entry.options}
        given = {name: value for name, value in said.items() if value is not None}
        if strange := [name for name in given if name not in known]:
            owners = _owners()[strange[0]]
            (_, option), *_ = owners
            flag = f"--set {option.flag.strip('-')}" if option.rare else option.flag
            names = " or ".join(owner.name for owner, _ in owners)
            raise InputError(
                f"{flag} is not an option of the method {entry.name}: leave it out, or use {names}"
            )
        asked = {known[name].setting: value for name, value in given.items()}
        settings: MethodSettings = registry.method_named(entry.name).settings(**asked)
        return settings if "insertion" in asked else adjusted_defaults(settings, texts_only)


def method_options(*, probe: bool) -> type[MethodOptions]:
    methods = registry.entries()
    names = StrEnum("MethodName", [(entry.name, entry.name) for entry in methods])  # type: ignore[misc]
    said = ". ".join(f"{entry.name}: {entry.summary}" for entry in methods)
    without, with_pairs = (registry.entry_of(None, pairs_given=given).name for given in (False, True))
    default = without if without == with_pairs else f"{without}, or {with_pairs} with --set pairs=FILE"
    declared = opt.method_option(help=f"{said}. Default: {default}.")
    columns: list[Any] = [("method", Annotated[names | None, declared], field(default=None))]
    for owners in _owners(probe).values():
        (_, option), *_ = owners
        # With the names of methods if their defaults differ or some lack the option.
        default = ", ".join(f"{own.default} ({entry.name})" for entry, own in owners)
        if len(owners) == len(methods) and len({own.default for _, own in owners}) == 1:
            default = option.default
        declared = opt.method_option(
            option.flag, help=f"{option.help} Default: {default}.", min=option.least, hidden=option.rare
        )
        columns.append((option.name, Annotated[option.kind | None, declared], field(default=None)))
    return make_dataclass("GivenMethodOptions", columns, bases=(MethodOptions,), frozen=True)


def _owners(probe: bool = False) -> dict[str, list[tuple[MethodEntry, Option]]]:
    found: dict[str, list[tuple[MethodEntry, Option]]] = {}
    for entry in registry.entries():
        for option in entry.options:
            if option.probe or not probe:
                found.setdefault(option.name, []).append((entry, option))
    return found


@command()
def detect(
    model: opt.ModelOrEndpoint,
    *,
    corpus: CorpusOptions,
    tokens: opt.Tokens = None,
    sample: Annotated[int | None, opt.texts_option(min=1)] = None,
    out: opt.Output[Path | None] = None,
    method: Annotated[MethodOptions, method_options(probe=False)],
    loading: opt.AnyModelOptions,
    computing: opt.EngineOptions,
    write_report: Annotated[bool, opt.setting("--report/--no-report")] = True,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Find the sticky tokens of a model. Run the same command again to continue an interrupted run.

    Example: stickytoken detect all-MiniLM-L6-v2 --sample 300

    Args:
        sample: Measure only this many tokens, drawn at random.
        out: Run folder. Default: runs/<model>-<method>-<identity>.
        write_report: Write report.html into the run folder, with curves and pairs.
    """
    from stickytoken.detection.run import look_at_model, record_model
    from stickytoken.detection.run_folder import require_usable
    from stickytoken.encoders.endpoint import names_endpoint

    engine = computing.choice
    settings = method.settings(corpus.pairs, names_endpoint(model))
    sentences = corpus.read()
    chosen = registry.choose_method(None, settings, corpus.pairs is not None)
    if out is not None:
        require_usable(out, chosen.entry.name, settings)
    # Where no option changes what the model computes, its name alone gives the same model.
    harmless: dict[str, Any] = dict.fromkeys(("revision", "device", "token_budget", "packed_layers"))
    plain = replace(loading, **harmless) == opt.AnyModelOptions()
    files = look_at_model(model, loading.revision) if plain else None
    encoder = opt.load(model, loading)
    opt.tell_layer(encoder)
    measured = partial(
        stickytoken.detect,
        sentences=sentences,
        pairs=corpus.pairs,
        tokens=opt.named_token_ids(encoder, tokens),
        sample=sample,
        settings=settings,
        evidence=write_report,
    )

    def rehearsed(stand_in: Any, place: Path) -> object:
        return measured(stand_in, out=place, progress=lambda step: stand_in.reached(step.stage))

    with opt.announced(encoder, loading, rehearsed, uncertain=chosen.uncertain_stage) as progress:
        run = measured(encoder, out=out, engine=engine, progress=progress)
    record_model(run.path, run.record, files)
    try:
        runs.show_run(run, output_format)
    finally:  # also if stdout was closed early
        if write_report:
            try:
                from stickytoken.reports import REPORT_FILE, report
            except MissingExtraError as error:
                console.inform(f"{error}; then: stickytoken report {run.path}")
            else:
                with console.status("writing the report"):
                    report(run, out=run.path / REPORT_FILE)
                console.inform(f"report: {run.path / REPORT_FILE}")


@command("revision", "route", "prompt", "token_prepending", "contrast", "truncate_dim", "layer")
def judge(
    run: opt.RunFolder,
    *,
    sentences: opt.Texts[str],
    column: opt.SentencesColumn = None,
    anchors: Annotated[int, opt.texts_option(min=2)] = 2000,
    model: opt.RunsModel = None,
    loading: opt.AnyModelOptions,
    limit: opt.ListLimit[int] = 50,
    output_format: opt.FormatChoice[opt.TableFormat] = opt.TableFormat.TABLE,
) -> None:
    """Find the tokens that are sticky on your own texts, from a finished run.

    Example: stickytoken judge runs/all-MiniLM-L6-v2-profile-0123456789ab --sentences documents.parquet

    Args:
        sentences: Your texts: a txt, csv, tsv, jsonl or parquet file, hub:REPOSITORY or hub:REPOSITORY@SPLIT.
        anchors: Maximum number of texts to compare with, drawn at random.
        limit: Maximum number of tokens to list in a table.
        output_format: Print a table or one JSON document of the flagged tokens, or all tokens as CSV.
    """
    from stickytoken.methods import base, wording
    from stickytoken.methods.base import MEASURING

    opened = stickytoken.open_run(run)
    opened.method.require_judging(opened)
    corpus = stickytoken.load_sentences(sentences, column)
    encoder = opt.load_for(str(run), opened.record, loading, model)
    measured = partial(stickytoken.judge, opened, corpus, anchors=anchors)

    def rehearsed(stand_in: Any, _: Path) -> object:
        return measured(encoder=stand_in, progress=lambda step: stand_in.reached(step.stage))

    with opt.announced(encoder, loading, rehearsed, uncertain=MEASURING) as progress:
        found = measured(encoder=encoder, progress=progress)
    if output_format is not opt.TableFormat.TABLE:
        if output_format is opt.TableFormat.JSON:
            console.print_json(found.summary())
        else:
            console.print_csv(found.tokens)
        return
    count = len(found.sticky)
    sticky = wording.counted(count, "sticky token") if count else "no sticky tokens"
    console.print_line(f"{opened.model_title} on {found.source}: {sticky}")
    topical = len(found.flagged) - len(found.sticky)
    if topical:
        lift = "lifts" if topical == 1 else "lift"
        console.print_line(
            f"{wording.counted(topical, 'more token')} {lift} these texts but fewer than half of the kinds "
            "of text, because of their meaning (topical)"
        )
    measured_tokens = base.worst_first(found.tokens.drop_nulls("verdict"))
    shown = measured_tokens.head(limit)
    table = opened.method.answer_table(opened, shown)
    if table is not None and not table.rows.is_empty():
        title = f"Strongest {len(shown)} of {len(measured_tokens)} tokens that were measured on these texts"
        console.print_columns(title, table.columns, table.rows)
    settings = opened.settings
    console.print_line(
        wording.rule(settings.number("smallest_lift"), settings.number("smallest_erased"))
        + " What a token erases is the run's; the lift is measured on these texts."
    )
    console.print_line(f"{found.texts:,} texts, compared with {found.anchors:,} of them. Run: {opened.path}")
    if found.narrow_limit is not None:
        console.inform(
            "note: to the model, these texts are more alike than random words: lifts are measured on the "
            f"less similar half of their pairs, below {found.narrow_limit:.4f}"
        )
    if found.left_out:
        console.inform(f"note: {found.left_out} texts were left out: the model cannot read them in full")
    if found.undecided:
        tokens = wording.counted(found.undecided, "further token")
        console.inform(f"note: {tokens} may reach a threshold but were not measured on these texts")


@command("route", "token_prepending", "contrast")
def probe(
    model: opt.ModelOrEndpoint,
    tokens: opt.TokenArguments,
    ids: opt.Ids = False,
    *,
    corpus: CorpusOptions,
    method: Annotated[MethodOptions, method_options(probe=True)],
    loading: opt.AnyModelOptions,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Show how far named tokens pull unrelated sentences together.

    Example: stickytoken probe all-MiniLM-L6-v2 trajectory river the
    """
    from stickytoken.encoders.endpoint import names_endpoint

    settings = method.settings(corpus.pairs, names_endpoint(model))
    named = [opt.token_id(token) for token in tokens] if ids else tokens
    sentences = corpus.read()
    encoder = opt.load(model, loading)
    measured = partial(
        stickytoken.probe, tokens=named, sentences=sentences, pairs=corpus.pairs, settings=settings
    )
    with opt.announced(encoder, loading, lambda stand_in, _: measured(stand_in)) as progress:
        evidence = measured(encoder, progress=progress)
    if output_format is opt.Format.JSON:
        console.print_json([asdict(each) for each in evidence])
        return
    for shown in registry.choose_method(None, settings, pairs_given=False).probe_lines(evidence):
        if isinstance(shown, str):
            console.print_line(shown)
        else:
            console.print_table(*shown)
