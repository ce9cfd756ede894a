"""What a detection looks at, where it writes, and what it refuses."""

import dataclasses
import os

import numpy as np
import polars as pl
import pytest

import planted
import stickytoken
import tiny
from stickytoken import detect, load_encoder, load_sentences, open_run
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion
from stickytoken.measurement.resume import differences
from stickytoken.methods.std.plan import StdSettings


def test_a_sample_is_drawn_by_the_seed(encoder, tmp_path):
    def drawn(seed, name):
        run = detect(
            encoder,
            sentences=planted.small_corpus(),
            settings=planted.SMALL,
            sample=12,
            seed=seed,
            out=tmp_path / name,
        )
        return run.tokens["token_id"].to_list(), run.record.identity

    first, again, other = drawn(1, "first"), drawn(1, "again"), drawn(2, "other")
    assert first == again
    assert first[0] != other[0]
    assert first[1] != other[1]
    for ids, _ in (first, other):
        assert len(ids) == 12
        assert ids == sorted(set(ids))


def test_a_sample_of_named_tokens_is_drawn_among_them(encoder, tmp_path):
    run = detect(
        encoder,
        sentences=planted.small_corpus(),
        settings=planted.SMALL,
        tokens=[50, 51, 52, 53],
        sample=3,
        out=tmp_path / "run",
    )
    ids = run.tokens["token_id"].to_list()
    assert len(ids) == 3
    assert set(ids) < {50, 51, 52, 53}


def test_the_seed_changes_the_identity_and_the_numbers(encoder, small_run, tmp_path):
    run = detect(
        encoder, sentences=planted.small_corpus(), settings=planted.SMALL, seed=7, out=tmp_path / "run"
    )
    assert differences(run.record.identity_parts, small_run.record.identity_parts) == ["settings.seed"]
    assert run.record.settings["seed"] == 7
    assert run.plan.scoring != small_run.plan.scoring
    assert not run.tokens["sticky_score"].equals(small_run.tokens["sticky_score"])


def test_a_seed_of_numpy_is_the_same_seed(encoder, tmp_path):
    arguments = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "tokens": [55, 60]}
    run = detect(encoder, **arguments, seed=7, out=tmp_path / "run")
    again = detect(encoder, **arguments, seed=np.int64(7), out=tmp_path / "again")
    assert again.record.identity == run.record.identity
    assert again.tokens.equals(run.tokens)


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


def test_without_a_folder_the_run_is_named_for_model_method_and_identity(encoder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = detect(encoder, sentences=planted.small_corpus(), settings=planted.SMALL, tokens=[60])
    assert run.path.as_posix() == f"runs/tiny-bert-std-{run.record.identity[:12]}"
    assert open_run(tmp_path / run.path).tokens.equals(run.tokens)


@pytest.mark.parametrize("name", ["[test]", "what?", "all*", "{a,b}", "été 漢", "a b", "~", "%20", "hf:x"])
def test_a_folder_name_is_a_name_and_no_pattern(encoder, tmp_path, name):
    if os.name != "posix" and set(name) & set("?*:"):
        pytest.skip("not a file name on this system")
    arguments = {"sentences": planted.small_corpus(), "settings": planted.SMALL, "tokens": [60]}
    run = detect(encoder, **arguments, out=tmp_path / name)
    events = []
    again = detect(encoder, **arguments, out=tmp_path / name, progress=events.append)
    assert events == []
    assert again.tokens.equals(run.tokens)
    (tmp_path / name / "tokens.parquet").unlink()
    detect(encoder, **arguments, out=tmp_path / name, progress=events.append)
    assert {event.computed for event in events} == {0}
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


def test_one_carrier_in_several_pairs_is_probed_in_each(encoder, tmp_path):
    """A pair list may hold the same pair twice; every pair keeps its own random placement."""
    pair = ("the bird sings.", "a quiet river.", 0.0)
    path = tmp_path / "pairs.csv"
    path.write_text(
        "sentence1,sentence2,similarity\n" + "".join(f"{pair[0]},{pair[1]},{value}\n" for value in (0.1, 0.2))
    )
    settings = StdSettings(scoring_pairs=2, validation_pairs=2, copies=2)
    run = detect(encoder, pairs=path, tokens=[60], settings=settings, out=tmp_path / "run")
    assert [each.similarity for each in run.plan.scoring] == [0.1, 0.2]
    assert run.plan.similarity_deviation > 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "guess"}, "method 'guess' is unknown: use profile or std"),
        (
            {"method": "profile"},
            "of type StdSettings, which the method 'profile' does not take: pass a Profile",
        ),
        ({"tokens": []}, "the list of tokens is empty"),
        ({"tokens": [5]}, r"token id 5 cannot occur in text \(UNREACHABLE_SPECIAL\)"),
        ({"tokens": [125]}, r"token id 125 cannot occur in text \(not in the vocabulary\)"),
        ({"sample": 0}, "between 1 and 95"),
        ({"sample": 96}, "between 1 and 95"),
        ({"seed": -1}, "seed is -1"),
    ],
    ids=str,
)
def test_what_cannot_be_detected_is_refused_before_a_folder_is_made(encoder, tmp_path, arguments, message):
    arguments = {"settings": planted.SMALL, "sentences": planted.small_corpus()} | arguments
    with pytest.raises(InputError, match=message):
        detect(encoder, out=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_an_empty_list_of_pairs_is_named_as_such(encoder, tmp_path):
    with pytest.raises(InputError, match="the list of pairs is empty"):
        detect(encoder, pairs=[], settings=planted.SMALL, out=tmp_path / "run")


def test_input_that_cannot_be_planned_leaves_the_folder_free_for_the_corrected_call(encoder, tmp_path):
    too_many = dataclasses.replace(planted.SMALL, sentences=61)
    with pytest.raises(InputError, match="but 61 are needed"):
        detect(encoder, sentences=planted.small_corpus(), settings=too_many, out=tmp_path / "run")
    run = detect(
        encoder,
        sentences=planted.small_corpus(),
        settings=planted.SMALL,
        tokens=[60],
        out=tmp_path / "run",
    )
    assert run.result.scored == 1


def test_an_insertion_given_by_its_name_is_what_the_name_says(encoder, tmp_path):
    """It would be a run that says ids and holds the numbers of text."""
    tables = [
        detect(
            encoder,
            sentences=planted.small_corpus(),
            settings=dataclasses.replace(planted.SMALL, insertion=insertion),
            tokens=[55, 60],
            out=tmp_path / str(place),
        ).tokens
        for place, insertion in enumerate(["ids", Insertion.IDS, "text", Insertion.TEXT])
    ]
    assert not tables[1].equals(tables[3])
    assert tables[2].equals(tables[3])
    assert tables[0].equals(tables[1])


def test_an_unknown_insertion_is_refused():
    with pytest.raises(InputError, match="insertion"):
        StdSettings(insertion="glued")


def test_sentences_and_pairs_together_are_refused(encoder, tmp_path):
    with pytest.raises(InputError, match="both given"):
        detect(encoder, sentences=planted.small_corpus(), pairs=tmp_path / "pairs.csv", out=tmp_path / "run")


def test_sentences_that_do_not_fit_with_the_copies_in_are_left_out_and_counted(encoder, tmp_path):
    long = (
        "the old bird sings near the green river and walks over the stone garden in the morning with a song "
    )
    texts = [*planted.small_corpus().texts[:30], *(f"{long * 2}{word}" for word in tiny.WORDS[:10])]
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(texts), encoding="utf-8")
    run = detect(
        encoder,
        sentences=load_sentences(path),
        settings=dataclasses.replace(planted.SMALL, sentences=40, copies=8),
        tokens=[60],
        out=tmp_path / "run",
    )
    assert run.plan.left_out == 10
    assert not any(long in text for pair in run.plan.validation for text in (pair.sentence1, pair.sentence2))
