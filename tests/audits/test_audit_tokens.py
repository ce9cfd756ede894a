"""Which tokens an audit measures, and in which group each of them is."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import planted
import profiled
import scanned
import tiny
import tokenizers_of_kinds as kinds
from audited import COPIES, MARKER, SMALL, WORDS, plain_ranks, stuffed_numbers
from naming import naming, says
from stickytoken import load_encoder, open_run
from stickytoken.audits import _measuring, _tokens, audit, wording
from stickytoken.errors import InputError
from stickytoken.insertion import Insertion, Joining
from stickytoken.vocabulary import categorize, choose_joinings


def test_a_word_of_all_queries_is_not_measured_and_named_as_left_out(tampered_run, texts, queries, tmp_path):
    measured = audit(
        tampered_run, texts, queries=queries, tokens=[MARKER], settings=SMALL, out=tmp_path / "audit"
    )
    assert MARKER not in measured.tokens["token"].to_list()
    assert any(says(note, "not measured", MARKER) for note in measured.record.notes)
    assert says(wording.setup(measured), "Not measured", MARKER)


def test_special_tokens_that_text_can_produce_are_measured(tampered_run, texts, queries, tmp_path):
    measured = audit(
        tampered_run,
        texts,
        queries=queries,
        settings=replace(SMALL, tokens=5),
        out=tmp_path / "audit",
    )
    special = measured.tokens.filter(pl.col("token").is_in(["[CLS]", "[SEP]"]))
    assert len(special) == 2
    assert set(special["group"]) <= {"flagged", "special"}


def test_named_tokens_are_measured_beside_random_ones(tampered_run, finished, texts, queries, tmp_path):
    words = [scanned.STICKY, *WORDS[5:9]]
    options = {
        "queries": queries,
        "settings": SMALL,
        "out": tmp_path / "audit",
    }  # the report has the other
    named = audit(tampered_run, texts, tokens=words, **options)
    groups = dict(named.tokens.select("token", "group").iter_rows())
    assert [word for word, group in groups.items() if group == "named"] == sorted(
        words, key=list(groups).index
    )
    assert sorted(groups.values()) == ["named"] * 5 + ["random"] * SMALL.tokens
    (row,) = named.tokens.filter(token=scanned.STICKY).to_dicts()
    (as_flagged,) = finished.tokens.filter(token=scanned.STICKY).to_dicts()
    assert (row["push"], row["push_low"]) == (as_flagged["push"], as_flagged["push_low"])
    assert named.record.identity != finished.record.identity
    with pytest.raises(InputError, match=naming(999999)):
        audit(tampered_run, texts, queries=queries, tokens=[999999], settings=SMALL)


@pytest.fixture(scope="module")
def run_with_words(texts, tmp_path_factory):
    """A run that writes its copies, of a byte-level model: its entries include the space before a word."""
    folder = tmp_path_factory.mktemp("words")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    rows = torch.randn(tokenizer.get_vocab_size(), 32, generator=torch.Generator().manual_seed(0))
    tiny.static_model(tokenizer, rows).save(str(folder / "model"))
    encoder = load_encoder(folder / "model", device="cpu")
    return profiled.detect_profile(encoder, folder / "run", insertion="words").path


def test_copies_are_written_as_the_run_wrote_them(run_with_words, texts, queries):
    """Copies of a piece without a space are attached to each other. As words, they would be another piece."""
    encoder = load_encoder(open_run(run_with_words).model_name, device="cpu")
    tokenizer = encoder.tokenizer
    written = choose_joinings(categorize(tokenizer), tokenizer, Insertion.WORDS)
    attached = [token for token in written.available if token.joining is Joining.ATTACHED]
    token = next(token for token in attached if token.id not in written.unspelled and len(token.text) > 1)
    read_as_words = [tokenizer.encode_many([f"a {token.text} {token.text}"])[0].count(token.id)]
    assert read_as_words == [0]
    measured = audit(run_with_words, texts, queries=queries, tokens=[token.id], settings=SMALL)
    assert measured.record.settings["insertion"] == "words"
    assert measured.record.notes == []
    (row,) = measured.tokens.filter(token_id=token.id).to_dicts()
    with_copies, without = [], []
    for turn, number in enumerate(stuffed_numbers(measured, row)):
        copies = COPIES * token.text
        new_text = f"{texts[number]} {copies}" if turn % 2 else f"{copies} {texts[number]}"
        with_copies.append(plain_ranks(encoder, texts, queries, number, new_text))
        without.append(plain_ranks(encoder, texts, queries, number, texts[number]))
    depth = measured.result.depth
    expected = (np.array(with_copies) <= depth).sum() / (np.array(without) <= depth).sum()
    assert row["push"] == pytest.approx(expected)


def test_another_insertion_than_that_of_the_run_is_noted(run_with_words, texts, queries, tmp_path):
    settings = replace(SMALL, insertion="ids")
    measured = audit(run_with_words, texts, queries=queries, settings=settings, out=tmp_path / "audit")
    (note,) = measured.record.notes
    assert says(note, "ids", "words")


def test_an_audit_of_a_run_over_some_tokens_measures_others_too(tampered_run, texts, queries, tmp_path):
    encoder = load_encoder(open_run(tampered_run).model_name, device="cpu")
    run = profiled.detect_profile(encoder, tmp_path / "run", tokens=[scanned.STICKY])
    measured = audit(run, texts, queries=queries, settings=SMALL)
    assert measured.tokens["token"][0] == scanned.STICKY
    others = measured.tokens.filter(~pl.col("token_id").is_in(run.tokens["token_id"].to_list()))
    assert "random" in others["group"].to_list()
    assert others["erased"].null_count() == len(others)
    assert others["push"].null_count() == 0


def test_a_run_without_effects_is_audited_without_predictions(
    finished, tampered_run, texts, queries, tmp_path
):
    shutil.copytree(
        tampered_run, tmp_path / "run", ignore=shutil.ignore_patterns("audit-*", "effects.parquet")
    )
    measured = audit(tmp_path / "run", texts, queries=queries, settings=SMALL)
    assert measured.result.predicted == 0
    assert "effects.parquet" in measured.record.notes[0]
    assert measured.tokens["token"][0] == scanned.STICKY


def test_a_word_that_documents_have_copies_of_is_measured(tampered_run, texts, queries, tmp_path):
    repeated = " ".join([WORDS[0]] * 12)
    documents = [*texts[:70], repeated]
    measured = audit(tampered_run, documents, queries=queries, settings=SMALL, out=tmp_path / "audit")
    found = measured.tokens.filter(group="in documents")
    assert found["token"].to_list() == [WORDS[0]]


def test_a_word_found_with_accents_or_capitals_is_its_token():
    tokens = [
        SimpleNamespace(id=3, text="resume"),
        SimpleNamespace(id=5, text="r\u00e9sum\u00e9"),
        SimpleNamespace(id=7, text=" Gr\u00f6\u00dfe"),
    ]
    bert = kinds.description_of(kinds.tokenizer_with(kinds.normalizers_of_models()["BERT, uncased"]))
    assert _tokens.find_tokens_of_words(tokens, ["resume", "gro\u00dfe", "two words"], bert) == [3, 7]
    assert _tokens.find_tokens_of_words(tokens[1:2], ["resume"], bert) == [5]


def chosen_groups(predicted, words, special=()):
    """The groups of four flagged tokens and one other."""
    ids = [3, 5, 7, 9]
    table = pl.DataFrame(
        {"token_id": ids, "vector_deviation": [None] * 4}, schema_overrides={"vector_deviation": pl.Float64}
    )
    run = SimpleNamespace(
        tokens=table,
        sticky=table,
        strongest=table.head,
        is_profile=True,
        normalizer=None,
        settings=SimpleNamespace(unusual=6.0),
    )
    tokens = {
        token_id: SimpleNamespace(id=token_id, text=text)
        for token_id, text in zip([*ids, 11], "abcde", strict=True)
    }
    candidates = SimpleNamespace(
        tokens=tokens, special_ids=list(special), ordinary_ids=list(tokens), named_ids=None
    )
    return _tokens.choose_tokens(run, candidates, predicted, words, SMALL)


def test_flagged_tokens_are_measured_in_turns_by_prediction_and_run():
    groups = chosen_groups({3: 0.1, 5: 0.2, 7: 0.3, 9: 0.0}, [])
    # The largest prediction, and the first of the run.
    assert [token_id for token_id, group in groups.items() if group == "flagged"] == [7, 3]


def test_flagged_tokens_beyond_the_limit_are_counted(tampered_run, texts, queries, tmp_path):
    """Those that are measured in another group, as special tokens here, count as measured."""
    run = Path(shutil.copytree(tampered_run, tmp_path / "run"))
    table = pl.read_parquet(run / "tokens.parquet")
    is_flagged = pl.int_range(len(table)) < 4
    is_flagged |= pl.col("token").is_in(["[CLS]", "[SEP]"])
    verdict = pl.when(is_flagged).then(pl.lit("sticky")).otherwise(pl.lit("benign"))
    planted.replace_tokens(run, table.with_columns(verdict=verdict))
    run = open_run(run)
    measured = audit(run, texts, queries=queries, settings=SMALL, out=tmp_path / "audit")
    is_flagged = measured.tokens["token_id"].is_in(run.sticky_ids)
    assert set(measured.tokens.filter(is_flagged)["group"]) == {"flagged"}
    measured_count = is_flagged.sum()
    assert measured_count > SMALL.tokens
    (note,) = (note for note in measured.record.notes if "flagged" in note)
    assert says(note, len(run.sticky), f"{measured_count} were measured", "--set tokens=NUMBER")
    named = audit(
        run, texts, queries=queries, tokens=[scanned.STICKY], settings=SMALL, out=tmp_path / "named"
    )
    assert not any("flagged" in note for note in named.record.notes)


def test_one_flagged_token_was_measured():
    sticky = pl.DataFrame({"token_id": [3, 4]})
    job = SimpleNamespace(
        run=SimpleNamespace(sticky=sticky),
        settings=replace(SMALL, tokens=1),
        candidates=SimpleNamespace(named_ids=None),
    )
    (note,) = _measuring._note_what_was_left_out(job, {3: None}, [], 16)
    assert says(note, "1 was measured")


def test_random_tokens_are_none_of_the_candidates_that_a_user_lists():
    listed = [f"listed{number}" for number in range(500)]
    encoder = load_encoder(lambda texts: np.ones((len(texts), 4)), candidates=listed)
    run = SimpleNamespace(
        is_profile=False,
        record=SimpleNamespace(method="std"),
        normalizer=None,
        sticky=pl.DataFrame({"token_id": []}, schema={"token_id": pl.Int64}),
        strongest=lambda count: pl.DataFrame({"token_id": []}, schema={"token_id": pl.Int64}),
    )
    settings = replace(SMALL, tokens=200, insertion="words")
    candidates = _tokens.read_candidates(run, encoder, settings, named=None)
    groups = _tokens.choose_tokens(run, candidates, {}, [], settings)
    assert list(groups.values()) == ["random"] * 200
    assert not groups.keys() & set(encoder.tokenizer.candidate_ids)


def test_a_token_is_in_the_first_group_that_it_fits():
    groups = chosen_groups({}, ["d", "e"], special=[3, 9])
    assert groups[3] == groups[5] == "flagged"
    assert groups[9] == "flagged"  # measured because it is special: of flagged tokens, two have room
    assert groups[11] == "in documents"
