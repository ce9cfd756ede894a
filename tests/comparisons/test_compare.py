"""Runs side by side: the numbers, what can be compared, and every wrong way to ask."""

import csv
import io
import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from markupsafe import escape

import planted
import profiled
import stickytoken
from hostile import HOSTILE, assert_harmless
from report_pages import Page
from stickytoken import compare, load_encoder
from stickytoken.comparisons import Answer, Measure
from stickytoken.errors import InputError
from stickytoken.measurement.store import ResultFolder
from stickytoken.repairs.result import REPAIR_FILE, CheckRecord, RepairRecord, VerificationRecord
from stickytoken.reports.comparison import finding
from stickytoken.validation import markdown

YES, CARE, NO = Answer


@pytest.fixture(scope="module")
def detected(tmp_path_factory):
    """Make the run of a model with a planted token of some strength."""

    def detect(strength, name, **options):
        model = load_encoder(profiled.planted_model(strength))
        return profiled.detect_profile(model, tmp_path_factory.mktemp("run") / name, **options)

    return detect


@pytest.fixture(scope="module")
def run(detected):
    return detected(2, "planted")


@pytest.fixture(scope="module")
def clean(detected):
    return detected(0, "clean")


@pytest.fixture(scope="module")
def sample(detected):
    return detected(0, "sample", sample=40)


@pytest.fixture
def changed(clean, tmp_path):
    """Copy the clean run and change its record."""

    def change(name="changed", **parts):
        folder = Path(shutil.copytree(clean.path, tmp_path / name))
        record = json.loads((folder / "run.json").read_text("utf-8"))
        for path, value in parts.items():
            *above, last = path.split("__")
            place = record
            for key in above:
                place = place[key]
            place[last] = value
        (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
        return folder

    return change


def reasons(found):
    return " | ".join(each.said for each in found.comparability.reasons)


def test_the_numbers_are_those_of_the_runs(run, clean):
    found = compare([run, clean.path])
    first, second = found.table.to_dicts()
    assert [each["folder"] for each in (first, second)] == [str(run.path), str(clean.path)]
    scale, row = run.method.scale(run), run.sticky.row(0, named=True)
    worst = ("!", "sticky", row["severity"])
    assert tuple(first[f"worst_{name}"] for name in ("token", "verdict", "severity")) == worst
    for end in ("", "_low", "_high"):
        assert first[f"worst_sd{end}"] == pytest.approx((row[f"lift{end}"] - scale.ordinary) / scale.spread)
    assert (first["sticky"], first["examined"], first["available"]) == (1, *[profiled.AVAILABLE] * 2)
    assert first["sticky_per_10000"] == pytest.approx(1e4 / profiled.AVAILABLE)
    assert first["sticky_per_10000_low"] < first["sticky_per_10000"] < first["sticky_per_10000_high"]
    assert first["selection"] == "all available tokens"
    assert (first["repair"], first["confidence"]) == ("no", 0.9)
    scale = clean.method.scale(clean)
    assert second["worst_sd"] == pytest.approx((clean.tokens["lift"].max() - scale.ordinary) / scale.spread)
    assert (second["sticky"], second["sticky_per_10000_low"], second["worst_severity"]) == (0, 0.0, None)
    assert found.comparability.answers == dict.fromkeys(Measure, YES)


def test_runs_agree_with_themselves(run, tmp_path):
    again = shutil.copytree(run.path, tmp_path / "again")
    found = compare([run, again])
    (agreement,) = found.agreements
    assert (agreement.jaccard, agreement.spearman) == (1.0, pytest.approx(1.0))
    assert agreement.shared == profiled.AVAILABLE
    assert [each.token for each in found.tokens] == ["!"]
    assert found.names == (f"{run.model_name} (planted)", f"{run.model_name} (again)")
    assert set(found.comparability.answers.values()) == {YES}
    assert found.comparability.reasons == ()


@pytest.mark.parametrize(
    ("first", "second", "names"),
    [
        ("/some/place/model", "/third/place", ("model", "place")),
        ("/some/place/model", "/other/place/model", ("/some/place/model", "/other/place/model")),
        ("/model", "http://127.0.0.1:1/v1#small", ("model", "small")),
        ("/model", "/model", ("1: model (x)", "2: model (x)")),
    ],
)
def test_names_tell_the_runs_apart(changed, tmp_path, first, second, names):
    (tmp_path / "other").mkdir()
    loading = {"endpoint": {}} if "#" in second else None
    runs = [changed("x", model__name=first), changed("other/x", model__name=second, model__loading=loading)]
    assert compare(runs).names == names


def test_a_sample_widens_one_number_and_weakens_the_others(clean, sample):
    found = compare([clean, sample])
    assert set(found.comparability.answers.values()) == {CARE}
    assert "only a random sample, 40 of 335 available tokens" in reasons(found)
    whole, part = found.table.to_dicts()
    assert part["selection"] == "a random sample"
    assert found.agreements[0].jaccard is None  # neither has a sticky token
    assert part["sticky_per_10000_high"] > whole["sticky_per_10000_high"]


def test_chosen_tokens_stand_for_nothing_else(clean, detected):
    chosen = detected(0, "chosen", tokens=list(profiled.WORDS[:30]))
    found = compare([clean, chosen])
    assert set(found.comparability.answers.values()) == {NO}
    assert found.table["sticky_per_10000"].to_list()[1] is None
    assert found.table["selection"][1] == "chosen tokens"


def test_methods_are_not_compared(clean, planted_run):
    found = compare([clean, planted_run])
    assert set(found.comparability.answers.values()) == {NO}
    assert "the methods differ (profile: " in reasons(found)
    row = found.table.row(1, named=True)
    assert (row["worst_sd"], row["worst_sd_low"], row["copies_until_serious"]) == (None, None, None)
    assert "without a scale that models share" in Page(stickytoken.report(found)).text


@pytest.mark.parametrize(
    ("parts", "answer", "said"),
    [
        ({"corpus__source": "elsewhere"}, NO, "different texts (test: "),
        ({"identity_parts__corpus": "another"}, NO, "the sentences from test were not the same"),
        ({"settings__smallest_effect": 0.2}, NO, "the settings differ (smallest effect: 0.5: "),
        ({"settings__budget": 9.0}, CARE, "different effort (budget: 4.0: "),
        ({"settings__seed": 1}, CARE, "different random choices (seed: 42: "),
        ({"identity_parts__version": 3}, CARE, "different versions of the method ("),
        ({"identity_parts__encoder__prompt": "query: "}, CARE, "prompts differ (none: "),
        ({"identity_parts__encoder__dtype": "bfloat16"}, CARE, "precisions (float32: "),
        ({"identity_parts__encoder": "damaged"}, CARE, "precisions (float32: "),
        ({"identity_parts__encoder__modules": "x"}, CARE, "used differently (pooling or other modules)"),
        ({"model__loading": {"endpoint": {}}}, CARE, "was measured through an endpoint"),
    ],
)
def test_what_differs_is_said(clean, changed, parts, answer, said):
    found = compare([clean, changed(**parts)])
    assert said in reasons(found)
    assert found.comparability.answers[Measure.WORST] is answer
    old = sum("made by an earlier version of the method: detect again" in note for note in found.notes)
    assert old == ("identity_parts__version" in parts)


def test_a_vocabulary_limits_the_share_alone_and_missing_curves_the_copies(clean, changed):
    folder = changed(identity_parts__encoder__weights="x", identity_parts__encoder__tokenizer="y")
    (folder / "evidence.json").unlink()
    found = compare([clean, folder])
    assert found.comparability.answers == {Measure.WORST: YES, Measure.SHARE: CARE, Measure.COPIES: NO}
    assert "335 to 335 available tokens" in reasons(found)
    assert found.table["copies_until_serious"][1] is None


def test_other_anchors_of_the_same_texts_are_noticed(clean, changed):
    folder = changed()
    plan = json.loads((folder / "plan.json").read_text("utf-8"))
    half = len(plan["anchors"]) // 2
    for place, anchor in enumerate(plan["anchors"][:half]):
        anchor["text"] = f"another text {place}"
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    found = compare([clean, folder])
    assert found.comparability.answers[Measure.WORST] is CARE
    assert "different choices of the same texts" in reasons(found)


def test_a_lift_that_the_curve_does_not_show_is_named(run, clean, tmp_path):
    folder = Path(shutil.copytree(run.path, tmp_path / "flat"))
    evidence = pl.read_parquet(folder / "evidence.parquet")
    flat = [[0.1] * 7] * len(evidence)
    evidence.with_columns(below=pl.Series(flat)).write_parquet(folder / "evidence.parquet")
    found = compare([clean, folder])
    assert found.table["copies_too_few"].to_list()[1] == 32
    assert any("serious over all placements of copies, but not in the curve" in note for note in found.notes)


@pytest.mark.parametrize(
    ("place", "passed", "state"),
    [
        ("run/repair-2", True, "verified"),
        ("run/repair-2", False, "NOT VERIFIED"),
        ("run/repair-2", None, "not verified"),
        ("model", True, "is itself repaired"),
    ],
)
def test_the_latest_repair_is_told(clean, changed, tmp_path, place, passed, state):
    folder = changed("run", model__name=str(tmp_path / "model"))
    for path, passes, month in (("run/repair-1", True, 1), (place, passed, 2)):
        check = CheckRecord(name="tokens", passed=bool(passes), finding="it is so")
        verification = VerificationRecord(
            ordinary_lift=0.0, similarity_spread=0.1, ordinary_contraction=0.0, carriers=1, anchors=1,
            source="texts", neighbours=[], scores=[], checks=[check],
        )  # fmt: skip
        record = RepairRecord(
            identity=path, identity_parts={"encoder": {"weights": "before"}}, model="m",
            run=clean.record.identity, strategy="auto", settings={}, tokens=[],
            verification=None if passes is None else verification,
            notes=[], versions={}, hardware={}, started=f"2026-0{month}-01T00:00:00+00:00", seconds=0.0,
        )  # fmt: skip
        (tmp_path / path).mkdir()
        ResultFolder(tmp_path / path).write_record(REPAIR_FILE, record)
    assert compare([clean, folder]).table["repair"].to_list() == ["no", state]


def test_the_command_prints_and_writes(run, clean, tmp_path):
    page = tmp_path / "page.html"
    result = planted.command("compare", run.path, clean.path, "--out", page)
    assert result.exit_code == 0, result.stderr
    assert f"page: {page}" in result.stderr.replace("\n", "")
    assert page.read_text("utf-8") == stickytoken.report(compare([run, clean]))
    for text in ("worst lift: comparable", "Clopper and Pearson 1934", "'!' (severe)"):
        assert text in result.stdout
    found = planted.document(planted.command("compare", run.path, clean.path, "--format", "json"))
    assert found == json.loads(json.dumps(compare([run, clean]).summary()))
    printed = planted.command("compare", run.path, clean.path, "--format", "csv").stdout
    assert pl.read_csv(io.StringIO(printed))["folder"].to_list() == [str(run.path), str(clean.path)]


def test_hostile_names_and_tokens_stay_text(clean, changed):
    name = "=1+1</script><script>alert(1)</script>\x1b[31mred\u202e\n"
    folder = changed(model__name=name)
    table = pl.read_parquet(folder / "tokens.parquet").sort("lift", descending=True)
    texts = [name, *HOSTILE, "@SUM(A1)"]
    named = table.head(len(texts)).with_columns(
        token=pl.Series(texts), verdict=pl.lit("sticky"), severity=pl.lit("severe")
    )
    named.write_parquet(folder / "tokens.parquet")
    for format_ in ("table", "json", "csv"):
        result = planted.command("compare", clean.path, folder, "--format", format_)
        assert result.exit_code == 0, result.stderr
        assert_harmless(result.stdout)
    cells = [cell for row in csv.reader(io.StringIO(result.stdout)) for cell in row]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "@"))]
    found = compare([clean, folder])
    html = stickytoken.report(found)
    assert_harmless(html.replace("\u2068", "").replace("\u2069", ""))
    assert Page(html).tags.count("script") == 3
    assert_harmless(stickytoken.report(found, format="md"))


def test_one_run_is_no_comparison(run):
    planted.refused("compare", run.path, saying="needs two runs, and 1 was passed: .*stickytoken report")
    planted.refused("compare", run.path, run.path / ".." / run.path.name, saying="was passed twice")


def test_what_is_no_run_is_refused(run, changed, tmp_path):
    planted.refused("compare", run.path, tmp_path, saying="is not a run folder")
    planted.refused("compare", run.path, changed(result=None), saying="is not finished: run the same command")
    with pytest.raises(InputError, match="pass a list of runs or run folders"):
        compare(str(run.path))


def test_a_comparison_begins_with_which_runs_found_sticky_tokens(run, clean, sample):
    found = compare([run, clean, sample])
    named = f"{found.names[0]} found sticky tokens; {found.names[1]} and {found.names[2]} found none."
    assert finding(found).startswith(named)
    html = stickytoken.report(found)
    assert html.index(str(escape(finding(found)))) < html.index('<main id="main"')
    assert set(Page(html).data["figures"]) == {"worst-by-run", "sticky-tokens-by-run"}
    assert markdown(finding(found)) in stickytoken.report(found, format="md")
    assert json.loads(stickytoken.report(found, format="json")) == json.loads(json.dumps(found.summary()))
    assert finding(compare([clean, sample])).startswith("No run found a sticky token.")
