"""Options of every command that loads a model, written down once."""

import inspect
from dataclasses import fields

import pytest
import typer
from typer.testing import CliRunner

from stickytoken.cli import show as cli_show
from stickytoken.cli.detect import detect
from stickytoken.cli.detection_options import ProfileOptions, StdOptions
from stickytoken.cli.embed import embed
from stickytoken.cli.evaluate import evaluate
from stickytoken.cli.explain import LookingOptions
from stickytoken.cli.impact_options import MeasuringOptions, TextSide
from stickytoken.cli.model_options import LoadingOptions, PromptingOptions, load, spread
from stickytoken.cli.options import Method
from stickytoken.cli.probe import probe
from stickytoken.cli.tune import tune
from stickytoken.encoders import load_encoder
from stickytoken.explanation import ExplainSettings
from stickytoken.impacts.settings import ImpactSettings, Side
from stickytoken.methods.profile.verdict import Verdict
from stickytoken.methods.registry import METHODS

LOADING = {field.name for field in fields(LoadingOptions)}
PROMPTING = {field.name for field in fields(PromptingOptions)}


@pytest.mark.parametrize("command", [detect, probe, embed, evaluate, tune])
def test_every_command_has_all_options_once(command):
    found = inspect.signature(command).parameters
    assert set(found) >= LOADING
    assert command is tune or set(found) >= PROMPTING
    assert not {"loading", "prompting"} & set(found)


def test_options_arrive_with_their_values_and_defaults():
    seen = []
    app = typer.Typer()

    @app.command()
    @spread
    def shown(model: str, *, loading: LoadingOptions, prompting: PromptingOptions, last: int = 3) -> None:
        """Say what arrived."""
        seen.append((model, loading, prompting, last))

    given = "m --dtype bfloat16 --token-budget 7 --layer -2 --token-prepending --last 5".split()
    assert CliRunner().invoke(app, given).exit_code == 0
    assert CliRunner().invoke(app, ["m"]).exit_code == 0
    assert CliRunner().invoke(app, ["m", "--no-such"]).exit_code == 2
    assert seen == [
        (
            "m",
            LoadingOptions(dtype="bfloat16", token_budget=7),
            PromptingOptions(token_prepending=True, layer=-2),
            5,
        ),
        ("m", LoadingOptions(), PromptingOptions(), 3),
    ]


def test_every_option_reaches_load_encoder(monkeypatch):
    import stickytoken.encoders

    found = {}
    monkeypatch.setattr(stickytoken.encoders, "load_encoder", lambda model, **options: found.update(options))
    loading = LoadingOptions("cuda:1", "float16", "main", trust_remote_code=True, token_budget=9)
    prompting = PromptingOptions("ke", "query", token_prepending=True, start=2, exit=5, layer=-3)
    load("m", loading, prompting)
    given = {name: getattr(loading, name) for name in LOADING}
    assert found == given | {name: getattr(prompting, name) for name in PROMPTING}
    assert set(found) < set(inspect.signature(load_encoder).parameters)


@pytest.mark.parametrize(
    ("options", "settings"), [(LookingOptions, ExplainSettings), (MeasuringOptions, ImpactSettings)]
)
def test_options_of_settings_have_the_names_and_defaults_of_the_settings(options, settings):
    defaults = {field.name: field.default for field in fields(settings)}
    assert {field.name: field.default for field in fields(options)}.items() <= defaults.items()


def test_what_the_command_line_offers_is_what_the_functions_take():
    """The command line has lists of its own where those of the functions are slow to import."""
    assert list(TextSide) == list(Side)
    assert [each.value for each in cli_show.Verdict] == ["sticky", "topical", "benign"]
    assert {each.value for each in cli_show.Verdict} == set(Verdict)
    assert {each.value for each in Method} == set(METHODS)


def test_every_setting_of_a_method_that_has_an_option_is_one_of_its_method():
    renamed = {"sentence_count": "sentences", "pair_count": "pairs"}
    for options, method in ((ProfileOptions, "profile"), (StdOptions, "std")):
        names = {renamed.get(field.name, field.name) for field in fields(options)}
        assert names <= {field.name for field in fields(METHODS[method].settings)}
        assert all(field.default is None for field in fields(options))
