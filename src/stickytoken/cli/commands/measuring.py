"""The commands detect and probe, which find the sticky tokens of a model and measure single tokens."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import asdict, dataclass, field, fields, make_dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import stickytoken
from stickytoken.cli import _options as opt, console
from stickytoken.cli._command import command
from stickytoken.cli.commands import runs
from stickytoken.errors import InputError, MissingExtraError
from stickytoken.methods import SETTINGS_OF_METHOD, choose_method, method_named
from stickytoken.settings import (
    DETECT_ONLY,
    choose_insertion,
    command_line_types,
    descriptions,
    part_of,
)
from stickytoken.settings.reading import Columns

if TYPE_CHECKING:
    from stickytoken.data import Sentences
    from stickytoken.methods.base import MethodSettings


@dataclass(frozen=True)
class CorpusOptions(Columns):
    """The texts into which copies are inserted, and the texts to compare them with.

    Attributes:
        sentences: Corpus: a txt, csv, tsv, jsonl or parquet file, hub:REPOSITORY or hub:REPOSITORY@SPLIT, or
            the word paper for the sentences of Chen et al. (2025). Default: the bundled corpus.
        pairs: File of sentence pairs to use instead of sampled pairs, with the columns sentence1, sentence2
            and similarity.
    """

    sentences: opt.TextsOption[str | None] = None
    pairs: opt.Setting[Path | None] = None

    def read_sentences(self) -> Sentences | None:
        """Return the sentences of the corpus; None if only pairs were passed, which then are the corpus.

        If both were passed, the library refuses them.
        """
        only_pairs_passed = self.pairs is not None and self.sentences is None and not self.names
        if only_pairs_passed:
            return None
        corpus = stickytoken.load_sentences(self.sentences, part_of(self, Columns))
        if corpus.reading:
            console.inform(f"read: {corpus.reading}")
        return corpus


@dataclass(frozen=True)
class MethodOptions:
    """The method and its settings. `method_options` returns a subclass with one field per setting."""

    def settings(self, pairs_given: bool) -> MethodSettings:
        """Return the settings of the method that the user chose.

        Args:
            pairs_given: Whether the user passed sentence pairs, on which the default method depends.

        Raises:
            InputError: The user passed a setting that the method does not have.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        method = choose_method(values.pop("method"), None, pairs_given)
        settings_class = SETTINGS_OF_METHOD[method]
        # An option that was not passed is None.
        arguments = {name: value for name, value in values.items() if value is not None}
        known_names = command_line_types(settings_class)
        for name in arguments:
            if name not in known_names:
                others = " or ".join(_methods_by_setting(for_probe=False)[name])
                raise InputError(
                    f"--set {name.replace('_', '-')} is not an option of the method {method}: leave it out, "
                    f"or use {others}"
                )
        settings: MethodSettings = settings_class(**arguments)
        return settings


def method_options(*, for_probe: bool) -> type[MethodOptions]:
    """Return a group of options that consists of --method and one option per setting of any method.

    Args:
        for_probe: Whether to include only settings that apply to `stickytoken probe`.

    Returns:
        A dataclass with one field per option. Every field is None if its option was not passed.
    """
    names = StrEnum("MethodName", [(name, name) for name in SETTINGS_OF_METHOD])  # type: ignore[misc]
    method_option = opt.method_option(
        help="profile: measures every token, with an interval. std: the method of Chen et al. 2025. "
        "Default: profile, or std with --set pairs=FILE."
    )
    options: list[Any] = [("method", Annotated[names | None, method_option], field(default=None))]
    for name, methods in _methods_by_setting(for_probe=for_probe).items():
        # Methods that share a setting declare it with the same type.
        setting_type = command_line_types(SETTINGS_OF_METHOD[methods[0]])[name]
        option = copy(opt.FIELD_OPTIONS.get(name, opt.setting()))  # other commands use it with another help
        # The help text names the default of each method, because the default of the field is None.
        option.help = _help_for(name, methods)
        kind: Any = setting_type.kind
        if setting_type.repeated:
            kind = list[kind]
        hint = Annotated[kind | None, *setting_type.metadata, option]
        options.append((name, hint, field(default=None)))
    return make_dataclass("SomeMethodOptions", options, bases=(MethodOptions,), frozen=True)


def _methods_by_setting(*, for_probe: bool) -> dict[str, list[str]]:
    methods_by_setting: dict[str, list[str]] = {}
    for method, settings_class in SETTINGS_OF_METHOD.items():
        for name, setting_type in command_line_types(settings_class).items():
            is_left_out = for_probe and DETECT_ONLY in setting_type.metadata
            if not is_left_out:
                methods_by_setting.setdefault(name, []).append(method)
    return methods_by_setting


def _help_for(name: str, methods: Sequence[str]) -> str:
    """Return the help text of a setting, which consists of a description and the default.

    The default is given for each method, unless all methods share the setting and its default.
    """
    settings_class = SETTINGS_OF_METHOD[methods[0]]
    description = descriptions(*settings_class.__mro__).get(name, "")
    defaults = {}  # keyed by the name of the method
    for method in methods:
        # The default insertion depends on the model; the help text names that of a model on this machine.
        default_settings = choose_insertion(SETTINGS_OF_METHOD[method](), texts_only=False)
        default = getattr(default_settings, name)
        defaults[method] = f"{default:g}" if isinstance(default, float) else str(default)
    if "Default: " in description:
        # The description names the default, because the default in the code is None. So only the methods that
        # have the setting are added.
        method_names = ", ".join(defaults)
        return f"{description.removesuffix('.')} ({method_names})."
    if len(methods) == len(SETTINGS_OF_METHOD) and len(set(defaults.values())) == 1:
        return f"{description} Default: {defaults[methods[0]]}."
    by_method = ", ".join(f"{default} ({method})" for method, default in defaults.items())
    return f"{description} Default: {by_method}."


@command(settings=("copies", "template"))
def detect(
    model: opt.ModelOrEndpoint,
    *,
    corpus: CorpusOptions,
    tokens: opt.Tokens = None,
    sample: Annotated[int | None, opt.texts_option(min=1)] = None,
    out: opt.OutputOption[Path | None] = None,
    method: Annotated[MethodOptions, method_options(for_probe=False)],
    loading: opt.AnyModelOptions,
    computing: opt.EngineOptions,
    write_report: Annotated[bool, opt.setting("--report/--no-report")] = True,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Find the sticky tokens of a model. Run the same command again to continue an interrupted run.

    Example: stickytoken detect all-MiniLM-L6-v2 --sample 300

    Args:
        sample: Measure only this many tokens, chosen at random.
        out: Run folder. Default: runs/<model>-<method>-<identity>.
        write_report: Also write report.html into the run folder.
    """
    from stickytoken.detection.naming import token_ids
    from stickytoken.methods.profile.plan import most_texts_to_confirm
    from stickytoken.methods.profile.rounds import confirming_stage
    from stickytoken.settings.profile import ProfileSettings
    from stickytoken.vocabulary import categorize

    engine = computing.choice
    settings = method.settings(corpus.pairs is not None)
    named = opt.parse_tokens_or_files(tokens)
    with console.status("reading the corpus"):
        sentences = corpus.read_sentences()
    encoder = opt.load_later(model, loading)
    run_detection = partial(
        stickytoken.detect,
        sentences=sentences,
        pairs=corpus.pairs,
        tokens=named,
        sample=sample,
        settings=settings,
    )

    def rehearse(stand_in: Any, folder: Path) -> object:
        """Detect with a stand-in for the encoder, which only counts texts, to estimate the cost.

        From the confirming round of profile on, the number of texts depends on the results. The number of
        texts for special tokens, which are measured earlier, depends on results too, but special tokens are
        few.
        """
        if isinstance(settings, ProfileSettings):
            # The maximum number of tokens that are measured.
            token_count = sample or len(stand_in.tokenizer.entries)
            if named is not None and sample is None:
                token_count = len(token_ids(categorize(stand_in.tokenizer), named))
            most_texts = most_texts_to_confirm(settings, token_count)
            stand_in.expect_uncertain(confirming_stage(batch=1), most_texts)
        return run_detection(stand_in, out=folder, progress=lambda step: stand_in.reached(step.stage))

    with opt.cost_announced(encoder, loading, rehearse) as progress:
        run = run_detection(encoder, out=out, engine=engine, progress=progress)
    try:
        runs.show_run(run, output_format)
    finally:  # write the report even if stdout was closed early
        if write_report:
            _write_report(run)


def _write_report(run: stickytoken.Run) -> None:
    try:
        from stickytoken.reports import REPORT_FILE, report  # raises an error without its extra
    except MissingExtraError as error:
        console.inform(f"{error}; then: stickytoken report {quote(str(run.path))}")
        return
    with console.status("writing the report"):
        report(run, out=run.path / REPORT_FILE)
    console.inform(f"report: {run.path / REPORT_FILE}")


@command(settings=("route", "token_prepending", "copies", "template"))
def probe(
    model: opt.ModelOrEndpoint,
    tokens: opt.TokenArguments,
    *,
    corpus: CorpusOptions,
    method: Annotated[MethodOptions, method_options(for_probe=True)],
    loading: opt.AnyModelOptions,
    output_format: opt.OutputFormat = opt.Format.TABLE,
) -> None:
    """Measure tokens closely: how much of a text their copies erase, and whether they push documents.

    Example: stickytoken probe all-MiniLM-L6-v2 trajectory river the
    """
    settings = method.settings(corpus.pairs is not None)
    named = opt.parse_tokens(tokens)
    sentences = corpus.read_sentences()
    encoder = opt.load_later(model, loading)
    run_probe = partial(
        stickytoken.probe, tokens=named, sentences=sentences, pairs=corpus.pairs, settings=settings
    )

    def rehearse(stand_in: Any, _: Path) -> object:
        """Measure with a stand-in for the encoder, which only counts texts, to estimate the cost."""
        return run_probe(stand_in)

    with opt.cost_announced(encoder, loading, rehearse) as progress:
        probed_tokens = run_probe(encoder, progress=progress)
    if output_format is opt.Format.JSON:
        console.print_json([asdict(probed_token) for probed_token in probed_tokens])
        return
    # The settings tell which method has measured the tokens.
    probed_by = choose_method(None, settings, pairs_given=False)
    for line_or_table in method_named(probed_by).describe_probe(probed_tokens):
        if isinstance(line_or_table, str):
            console.print_line(line_or_table)
        else:
            console.print_table(*line_or_table)
