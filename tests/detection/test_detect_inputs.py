"""What a detection looks at, where it writes, and what it refuses."""

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from sentence_transformers import SentenceTransformer

import planted
import profiled
import stickytoken
import tiny
from naming import naming, says
from stickytoken import detect, explain, load_encoder, load_sentences, open_run
from stickytoken.cli._options import ModelOptions, open_source
from stickytoken.detection.run import (
    complete_spec,
    encoder_for,
    identify_model,
    is_run,
    model_difference,
    require_same_model,
)
from stickytoken.detection.run_folder import RunFolder
from stickytoken.encoders.files.spec import EncoderSpec
from stickytoken.errors import InputError, ModelError, RunError
from stickytoken.insertion import Insertion
from stickytoken.loading import DeferredModel
from stickytoken.measurement.store import default_folder, folder_name
from stickytoken.methods.std.plan import encode_texts
from stickytoken.repairs import _choose_corpus_and_note
from stickytoken.settings.prompting import Prompting
from stickytoken.unit_vectors import Similarity


@pytest.mark.slow
def test_a_sample_is_drawn_by_the_seed_among_the_named_tokens(encoder, tmp_path):
    runs_found = []
    for index, seed in enumerate((1, 1, 2)):
        options = {"settings": planted.SMALL, "tokens": range(50, 60), "sample": 5, "seed": seed}
        run = detect(encoder, sentences=planted.small_corpus(), out=tmp_path / str(index), **options)
        runs_found.append((run.tokens["token_id"].to_list(), run.record.identity))
        assert set(runs_found[-1][0]) < set(range(50, 60))
        assert len(runs_found[-1][0]) == 5
    assert runs_found[0] == runs_found[1]
    assert all(ours != theirs for ours, theirs in zip(runs_found[0], runs_found[2], strict=True))


def test_a_model_that_was_moved_and_a_corpus_file_that_was_moved_continue_the_run(
    encoder, small_run, bert_folder, tmp_path
):
    moved = tmp_path / "elsewhere"
    moved.symlink_to(bert_folder)
    corpus = tmp_path / "lines.txt"
    corpus.write_text("\n\n".join(planted.small_corpus().texts), encoding="utf-8")
    events = []
    run = detect(
        load_encoder(moved, device="cpu"),
        sentences=corpus,
        settings=planted.SMALL,
        out=small_run.path,
        progress=events.append,
    )
    assert events == []
    assert run.tokens.equals(small_run.tokens)


def test_a_run_finds_a_model_that_was_named_by_a_relative_path_from_any_folder(
    bert_folder, tmp_path, monkeypatch
):
    monkeypatch.chdir(bert_folder.parent)
    options = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "tokens": [60]}
    run = detect(bert_folder.name, out=tmp_path / "run", **options)
    monkeypatch.chdir(tmp_path)
    assert (run.model_name, run.record.model.folder) == (bert_folder.name, str(bert_folder.resolve()))
    encoder_for(None, open_run("run"), "this test")


def test_without_a_folder_the_run_is_named_for_model_method_and_identity(encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    options = {"sentences": tiny.sentences(60), "settings": planted.SMALL, "tokens": [60]}
    assert detect(encoder, out="~/run", **options).path == tmp_path / "run"
    run = detect(encoder, **options)
    assert run.path.as_posix() == f"runs/tiny-bert-std-{run.record.identity[:12]}"
    assert open_run(tmp_path / run.path).tokens.equals(run.tokens)


@pytest.mark.parametrize("name", ["[test]", "été 漢"])
def test_a_folder_name_is_a_name_and_no_pattern(encoder, tmp_path, name):
    arguments = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "tokens": [60]}
    run = detect(encoder, **arguments, out=tmp_path / name)
    (tmp_path / name / "tokens.parquet").unlink()
    events = []
    again = detect(encoder, **arguments, out=tmp_path / name, progress=events.append)
    assert {event.computed for event in events} == {0}
    assert again.tokens.equals(run.tokens)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_record_says_what_was_computed_and_with_what(small_run, encoder):
    record = small_run.record
    assert record.model.name == str(encoder.name)
    assert (record.model.vocabulary, record.model.available) == (125, 95)
    assert (record.corpus.source, record.corpus.sentences) == ("test", 60)
    assert record.settings == dataclasses.asdict(planted.SMALL)
    assert record.versions["polars"] == pl.__version__
    assert record.versions["stickytoken"] == stickytoken.__version__
    assert record.hardware["device"] == "cpu"
    assert small_run.vocabulary["token_id"].to_list() == list(range(125))
    assert small_run.plan.mean_similarity_entries == 125


REFUSED = {
    "method": ({"method": "guess"}, naming("'guess'", "profile", "std")),
    "settings": ({"method": "profile"}, naming("StdSettings", "'profile'", "ProfileSettings")),
    "tokens": ({"tokens": [125]}, naming("token id", 125)),
    "seed": ({"seed": -1}, naming("seed", -1)),
    "pairs": ({"sentences": None, "pairs": []}, naming("pairs", "empty")),
    "both": ({"pairs": "pairs.csv"}, naming("sentences", "pairs", "both")),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_detected_is_refused_before_a_folder_is_made(encoder, tmp_path, arguments, message):
    arguments = {"settings": planted.SMALL, "sentences": planted.small_corpus()} | arguments
    with pytest.raises(InputError, match=message):
        detect(encoder, out=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_sentences_that_do_not_fit_with_the_copies_in_are_left_out_and_counted(encoder, tmp_path):
    long = (
        "the old bird sings near the green river and walks over the stone garden in the morning with a song "
    )
    texts = [*planted.small_corpus().texts[:30], *(f"{long * 3}{word}" for word in tiny.WORDS[:10])]
    settings = replace(planted.SMALL, sentence_count=40, copies=8, insertion=Insertion.IDS)
    run = detect(encoder, sentences=texts, settings=settings, tokens=[60], out=tmp_path / "run")
    assert run.plan.left_out == 10
    assert not any(long in text for pair in run.plan.validation for text in (pair.sentence1, pair.sentence2))


def test_texts_with_copies_are_cut_to_what_the_model_reads(encoder, tmp_path):
    long = (
        "the old bird sings near the green river and walks over the stone garden in the morning with a song "
    )
    texts = [*planted.small_corpus().texts[:30], *(f"{long * 4}{word}" for word in tiny.WORDS[:10])]
    settings = replace(planted.SMALL, sentence_count=40, copies=8)
    run = detect(encoder, sentences=texts, settings=settings, tokens=[60], out=tmp_path / "run")
    assert run.plan.left_out == 0
    used = {text for pair in run.plan.validation for text in (pair.sentence1, pair.sentence2)}
    assert set(run.plan.truncated) <= used | {text for pair in run.plan.scoring for text in pair.sentences}
    assert any(long in text for text in used)
    assert any("truncated" in note for note in run.description.notes)


def test_cut_texts_have_the_vectors_that_the_model_gives_whole_ones(encoder, bert_folder):
    texts = [f"the old bird sings near the river {'and walks ' * 200}{word}" for word in ("home", "away")]
    model = SentenceTransformer(str(bert_folder), device="cpu")
    ours = encode_texts(encoder, texts, Insertion.TEXT)
    assert ours == pytest.approx(model.encode(texts, normalize_embeddings=True), abs=1e-5)


def test_another_model_is_refused_by_what_differs(small_run, encoder):
    identity = replace(encoder.identify(), prompt="query: ", max_length=None)
    changed = SimpleNamespace(name="other", identify=lambda: identity)
    assert model_difference(small_run.record, identify_model(changed)) == ["max_length", "prompt"]
    with pytest.raises(RunError, match=naming("'other'", "max_length", "prompt")):
        require_same_model(small_run, changed)


def test_a_model_that_compares_vectors_otherwise_is_another(planted_profile):
    run = open_run(planted_profile[1])
    encoder = encoder_for(None, run, "the test")
    same = identify_model(encoder)
    assert model_difference(run.record, same) == []
    other = same._replace(similarity=Similarity.DOT)
    assert model_difference(run.record, other) == ["similarity"]


@pytest.mark.parametrize("parts", [{}, {"encoder": None}, {"encoder": "all-MiniLM-L6-v2"}])
def test_a_run_that_does_not_say_which_model_it_looked_at_is_refused(small_run, encoder, parts):
    record = small_run.record.model_copy(update={"identity_parts": parts})
    assert model_difference(record, identify_model(encoder)) is None
    with pytest.raises(RunError, match=naming(small_run.path)):
        require_same_model(SimpleNamespace(record=record, path=small_run.path), encoder)


def test_a_folder_with_a_run_is_told_from_a_model(small_run, bert_folder, tmp_path):
    assert is_run(small_run.path)
    assert not is_run(bert_folder)
    assert not is_run(tmp_path / "missing")


@pytest.mark.parametrize(
    ("model", "stem"),
    [
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("organisation/model.v1", "model.v1"),
        ("./models/a model; rm -rf *", "a-model-rm-rf"),
        ("..", "model"),
        ("/", "model"),
    ],
)
def test_results_go_to_a_folder_that_names_model_kind_and_identity(model, stem):
    identity = "0123456789abcdef" * 4
    assert default_folder(model, "std", identity) == Path("runs", f"{stem}-std-0123456789ab")
    assert folder_name("audit", identity) == "audit-0123456789ab"


# Loading it fails, so whatever is refused otherwise was refused before the long work.
NO_MODEL = "no-such-folder/of/a-model"


def test_a_run_with_other_settings_is_refused_before_the_model_is_loaded(small_run):
    with pytest.raises(RunError, match=naming(small_run.path, "settings.copies")):
        detect(NO_MODEL, settings=replace(planted.SMALL, copies=2), out=small_run.path)
    with pytest.raises(RunError, match=naming(small_run.path, "method")):
        detect(NO_MODEL, settings=profiled.SMALL, out=small_run.path)
    with pytest.raises(ModelError):
        detect(NO_MODEL, settings=planted.SMALL, out=small_run.path)


def test_a_locked_folder_is_refused_before_the_model_is_loaded(small_run, tmp_path):
    token_id, token = small_run.tokens.select("token_id", "token").row(0)
    calls = {
        tmp_path / "run": lambda: detect(NO_MODEL, settings=planted.SMALL, out=tmp_path / "run"),
        tmp_path / "audit": lambda: stickytoken.audit(NO_MODEL, ["a text"], out=tmp_path / "audit"),
        tmp_path / "ids" / "60": lambda: explain(NO_MODEL, [7, 60], out=tmp_path / "ids"),
        tmp_path / "names" / str(token_id): lambda: explain(
            NO_MODEL, [token], run=small_run, out=tmp_path / "names"
        ),
    }
    for folder, call in calls.items():
        with RunFolder(folder).locked(), pytest.raises(RunError, match=naming(folder)):
            call()
        with pytest.raises(ModelError):
            call()


def test_a_folder_that_is_read_only_or_has_other_files_is_refused_before_the_model_is_loaded(
    tmp_path, monkeypatch
):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RunError, match=naming(tmp_path, "files")):
        detect(NO_MODEL, settings=planted.SMALL, out=tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: path != tmp_path)
    with pytest.raises(RunError, match=naming(tmp_path, "read-only")):
        detect(NO_MODEL, settings=planted.SMALL, out=tmp_path / "run")


def test_a_precision_that_the_model_lacks_is_refused_before_the_vocabulary_is_encoded(encoder, tmp_path):
    events = []
    with pytest.raises(InputError, match="tf32"):
        detect(
            encoder,
            sentences=profiled.corpus(),
            settings=replace(profiled.SMALL, screen_precision="tf32"),
            out=tmp_path / "run",
            progress=events.append,
        )
    assert events == []


def test_a_folder_in_the_way_of_an_explanation_or_audit_is_refused_first(small_run, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    wrong = naming(small_run.path, small_run.path / "explain")
    with pytest.raises(RunError, match=wrong):
        explain(NO_MODEL, ["river"], out=small_run.path)
    for out in (tmp_path, small_run.path):
        with pytest.raises(RunError, match=naming(out, "files")):
            stickytoken.audit(NO_MODEL, ["a text"], out=out)
    planted.assert_refused("explain", small_run.path, "river", "--out", small_run.path, saying=wrong)


def test_a_model_is_loaded_once_and_not_before_everything_else_was_checked(encoder, small_run, tmp_path):
    loaded = []

    def load():
        loaded.append(encoder)
        return encoder

    model = DeferredModel(load, reads_texts_only=False)
    (tmp_path / "notes.txt").write_text("mine")
    none = tmp_path / "none.jsonl"
    calls = (
        lambda: detect(model, settings=planted.SMALL, out=tmp_path),
        lambda: stickytoken.audit(model, none),
        lambda: stickytoken.audit(model, ["a text"], out=tmp_path),
        lambda: stickytoken.audit(model, ["a text"], vectors=none),
        lambda: explain(model, ["river"], texts=[" "]),
        lambda: explain(model, ["river"], out=small_run.path),
        lambda: stickytoken.repair(small_run, out=tmp_path, encoder=model),
    )
    for call in calls:
        with pytest.raises((InputError, RunError)):
            call()
    assert loaded == []
    assert load_encoder(model) is load_encoder(model) is encoder
    assert loaded == [encoder]


def test_the_columns_of_the_texts_are_recorded_and_read_again(encoder, tmp_path):
    sentences = planted.small_corpus().texts
    rows = [json.dumps({"text": f"title {number}", "wording": text}) for number, text in enumerate(sentences)]
    path = tmp_path / "texts.jsonl"
    path.write_text("\n".join(rows), "utf-8")
    corpus = load_sentences(path, "wording")
    run = detect(encoder, sentences=corpus, settings=planted.SMALL, sample=5, out=tmp_path / "run")
    read_again, note = _choose_corpus_and_note(open_run(run.path), None, encoder)
    assert note is None
    assert read_again.texts == corpus.texts
    path.write_text("\n".join([*rows, '{"wording": "another text"}']), "utf-8")
    read_again, note = _choose_corpus_and_note(open_run(run.path), None, encoder)
    assert says(note, path)
    assert len(read_again) == len(corpus) + 1


def test_the_copy_of_a_model_has_no_revision(small_run, bert_folder, tmp_path):
    run = Path(shutil.copytree(small_run.path, tmp_path / "run"))
    recorded = json.loads((run / "run.json").read_text("utf-8"))["model"]
    of_hub = {"name": "tests/tiny", "folder": None, "loading": recorded["loading"] | {"revision": "v2"}}
    planted.edit_record(run, model=recorded | of_hub)
    _, model = open_source(str(run), ModelOptions(device="cpu"), moved_to=str(bert_folder))
    assert model.load().spec.revision is None
    with pytest.raises(InputError, match=naming("'v3'", repr(str(bert_folder)))):
        open_source(str(run), ModelOptions(revision="v3"), moved_to=str(bert_folder))
    of_name = complete_spec(open_run(run).record, EncoderSpec(model="tests/tiny"))
    assert of_name.revision == "v2"


def test_another_layer_keeps_the_recorded_prompt_and_another_prompt_replaces_both(
    small_run, bert_folder, tmp_path
):
    run = Path(shutil.copytree(small_run.path, tmp_path / "run"))
    recorded = json.loads((run / "run.json").read_text("utf-8"))["model"]
    loading = recorded["loading"] | {"prompt": "passage: ", "query_prompt": "query: ", "layer": 1}
    planted.edit_record(run, model=recorded | {"loading": loading})

    def load(**options):
        options = ModelOptions(device="cpu", **options)
        _, model = open_source(str(run), options, moved_to=str(bert_folder))
        return model.load().spec.prompting

    assert load() == Prompting("passage: ", query_prompt="query: ", layer=1)
    all_layers = 2
    assert load(layer=all_layers) == Prompting("passage: ", query_prompt="query: ")
    assert load(query_prompt="ask: ") == Prompting("passage: ", query_prompt="ask: ", layer=1)
    assert load(prompt="text: ") == Prompting("text: ")
