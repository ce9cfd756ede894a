"""Options of every command that loads a model, written down once."""

import inspect
from dataclasses import fields

import pytest
import typer
from typer.testing import CliRunner

from stickytoken.cli._loading import command as command_of
from stickytoken.cli._loading import load
from stickytoken.cli.app import app
from stickytoken.cli.commands.detect import detect
from stickytoken.cli.commands.embed import embed
from stickytoken.cli.commands.evaluate import evaluate
from stickytoken.cli.commands.explain import MeasuringOptions as ExplainOptions
from stickytoken.cli.commands.explain import explain
from stickytoken.cli.commands.probe import probe
from stickytoken.cli.commands.repair import repair
from stickytoken.cli.commands.tune import tune
from stickytoken.cli.commands.why import why
from stickytoken.cli.options.method import MeasuringOptions as ImpactOptions
from stickytoken.cli.options.model import AddressOptions, LoadingOptions, PromptingOptions
from stickytoken.encoders import Prompting, load_encoder
from stickytoken.errors import InputError
from stickytoken.explanation import ExplainSettings
from stickytoken.impacts.results import ImpactSettings
from stickytoken.methods.entry import MethodEntry, Option
from stickytoken.methods.registry import entries, method_named, register

LOADING = {field.name for field in fields(LoadingOptions)}
PROMPTING = {field.name for field in fields(PromptingOptions)}


@pytest.mark.parametrize("command", [detect, probe, embed, evaluate, tune])
def test_every_command_has_all_options_once(command):
    found = inspect.signature(command).parameters
    assert set(found) >= LOADING
    assert command is tune or set(found) >= PROMPTING
    assert not {"loading", "prompting"} & set(found)


@pytest.mark.parametrize("command", [explain, repair, tune, why])
def test_a_command_that_needs_the_model_itself_has_no_options_of_endpoints(command):
    found = set(inspect.signature(command).parameters)
    assert found & {field.name for field in fields(AddressOptions)} == LOADING


def test_options_arrive_with_their_values_and_defaults():
    seen = []
    app = typer.Typer()

    @app.command()
    @command_of
    def shown(model: str, *, loading: LoadingOptions, prompting: PromptingOptions, last: int = 3) -> None:
        """Say what arrived."""
        seen.append((model, loading, prompting, last))

    given = "m --dtype bfloat16 --token-budget 7 --no-packed-layers --layer -2 --token-prepending".split()
    assert CliRunner().invoke(app, [*given, "--last", "5"]).exit_code == 0
    assert CliRunner().invoke(app, ["m"]).exit_code == 0
    assert CliRunner().invoke(app, ["m", "--no-such"]).exit_code == 2
    assert seen == [
        (
            "m",
            LoadingOptions(dtype="bfloat16", token_budget=7, packed_layers=False),
            PromptingOptions(token_prepending=True, layer=-2),
            5,
        ),
        ("m", LoadingOptions(), PromptingOptions(), 3),
    ]


def test_every_option_reaches_load_encoder(monkeypatch):
    import stickytoken.encoders

    found = {}
    monkeypatch.setattr(stickytoken.encoders, "load_encoder", lambda model, **options: found.update(options))
    loading = LoadingOptions(
        revision="main",
        trust_remote_code=True,
        device="cuda:1",
        dtype="float16",
        token_budget=9,
        packed_layers=False,
    )
    values = {"token_prepending": True, "start": 2, "exit": 5, "layer": -3, "contrast": True}
    values |= {"contrast_layer": 1, "contrast_strength": 0.25, "contrast_rule": "norm"}
    prompting = PromptingOptions("ke", "query", **values)
    load("m", loading, prompting)
    given = {name: getattr(loading, name) for name in LOADING}
    assert found.pop("prompt") == Prompting("ke", "query", **values)
    assert found == given
    assert set(found) < set(inspect.signature(load_encoder).parameters)


@pytest.mark.parametrize(
    ("options", "settings"), [(ExplainOptions, ExplainSettings), (ImpactOptions, ImpactSettings)]
)
def test_options_of_settings_have_the_names_and_defaults_of_the_settings(options, settings):
    defaults = {field.name: field.default for field in fields(settings)}
    assert {field.name: field.default for field in fields(options)}.items() <= defaults.items()


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.name)
def test_every_option_of_a_method_is_one_of_its_settings_and_shows_its_default(entry):
    settings = method_named(entry.name).settings()
    for option in entry.options:
        value = getattr(settings, option.setting)
        if value is True or value in (None, ()):
            assert option.default == (option.setting if value else "the model's own")
            continue
        assert type(value) is option.kind
        assert option.kind(option.default) == value, option.name


@pytest.mark.parametrize(("command", "probe"), [(detect, False), (probe, True)])
def test_a_command_has_every_option_of_every_method(command, probe):
    found = inspect.signature(command).parameters
    wanted = {option.name for entry in entries() for option in entry.options if option.probe or not probe}
    assert set(found) >= wanted | {"method"}
    assert all(found[name].default is None for name in wanted)


def test_an_option_that_several_methods_have_shows_the_default_of_each():
    shown = typer.main.get_command(app).commands["detect"]
    helps = {option.name: option.help for option in shown.params if getattr(option, "help", None)}
    assert helps["insertion"].endswith(" Default: ids (profile), text (std).")
    assert helps["seed"].endswith(" Default: 42.")
    assert helps["budget"].endswith(" Default: 4 (profile).")
    assert helps["method"].endswith(" Default: profile, or std with --pairs.")
    assert not any(
        text.startswith(("profile: ", "std: ")) for name, text in helps.items() if name != "method"
    )


def test_one_name_has_one_meaning():
    meant = Option("copies", float, "Something else.", "1")
    entry = MethodEntry("other", "", (meant,), takes_pairs=False, load=lambda: method_named("std"))
    with pytest.raises(InputError, match="--copies of the method other differs from --copies"):
        register(entry)
    assert "other" not in {each.name for each in entries()}
