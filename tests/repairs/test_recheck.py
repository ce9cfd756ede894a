"""A model measured again, in other texts than those of its run."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import planted
import profiled
import repaired
import tiny
from naming import naming
from stickytoken import load_encoder
from stickytoken.data import collect_sentences
from stickytoken.errors import InputError
from stickytoken.insertion import Joining, Token
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods import Verdict
from stickytoken.repairs._verification import NEIGHBOURS, find_neighbours
from stickytoken.repairs.model_folder import require_repairable
from stickytoken.repairs.recheck import (
    CARRIERS,
    Copies,
    choose_joining_of_each,
    list_used_texts,
    make_recheck,
)
from stickytoken.vocabulary import categorize

pytestmark = pytest.mark.slow  # a whole run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return repaired.saved_run(tmp_path_factory.mktemp("rechecking"), repaired.WORD)


@pytest.fixture(scope="module")
def encoder(run):
    return load_encoder(run.path.parent / "model", device="cpu")


@pytest.fixture(scope="module")
def vocabulary(encoder):
    return categorize(encoder.tokenizer)


@pytest.fixture(scope="module")
def recheck(run, encoder, vocabulary):
    return make_recheck(
        run,
        encoder,
        vocabulary,
        profiled.corpus(300),
        seed=1,
        excluded=run.sticky_ids,
        progress=ignore_progress,
    )


def token_of(vocabulary, name):
    index = vocabulary.tokens.index(name)
    return Token(vocabulary.ids[index], vocabulary.decoded[index])


def without_full_stops(texts):
    return {text.rstrip(".") for text in texts}


def test_the_texts_are_those_that_the_run_has_not_used(run, recheck):
    assert len(recheck.plan.carriers) == CARRIERS
    assert without_full_stops(recheck.plan.carriers).isdisjoint(without_full_stops(list_used_texts(run)))


def test_a_text_that_only_shares_its_first_letters_with_a_text_of_the_run_is_unused(run, encoder, vocabulary):
    used = list_used_texts(run)[0].rstrip(".")

    def recheck_in(texts):
        return make_recheck(
            run,
            encoder,
            vocabulary,
            collect_sentences(texts, "test"),
            seed=1,
            excluded=run.sticky_ids,
            progress=ignore_progress,
        )

    others = profiled.sentences(100, seed=8)
    longer_word = [f"{used}{text}" for text in others]
    assert {text.rstrip(".") for text in longer_word}.issuperset(recheck_in(longer_word).plan.carriers)
    with pytest.raises(InputError):  # all of them begin with a text of the run
        recheck_in([f"{used}. {text}" for text in others])


def test_sticky_tokens_are_not_ordinary(run, recheck):
    ids = {token.id for token in recheck.ordinary_tokens}
    assert len(recheck.plan.pilots) == 32
    assert ids == set(recheck.plan.pilots) - set(run.sticky_ids)


@pytest.mark.parametrize("left", [0, 1])
def test_too_many_tokens_to_repair_are_refused(run, encoder, vocabulary, recheck, left):
    excluded = recheck.plan.pilots[left:]
    with pytest.raises(InputError, match=naming(left, len(recheck.plan.pilots), "fewer tokens")):
        make_recheck(
            run,
            encoder,
            vocabulary,
            profiled.corpus(300),
            seed=1,
            excluded=excluded,
            progress=ignore_progress,
        )


def test_a_planted_token_is_sticky_again(recheck, vocabulary):
    token = token_of(vocabulary, repaired.WORD)
    judged = recheck.judge(Copies([token], []))
    assert judged.tokens[token.id].verdict == Verdict.STICKY
    assert judged.reaches[token.id] > 1


def test_an_ordinary_token_is_benign(recheck, vocabulary):
    token = token_of(vocabulary, repaired.OTHER)
    judged = recheck.judge(Copies([token], []))
    assert judged.tokens[token.id].verdict == Verdict.BENIGN
    assert judged.reaches[token.id] < 0.5


def test_pieces_of_a_split_token_need_no_room_in_carriers(run, tmp_path):
    short = load_encoder(profiled.save_bert(tmp_path), device="cpu", max_length=30)
    vocabulary = categorize(short.tokenizer)
    recheck = make_recheck(
        run,
        short,
        vocabulary,
        profiled.corpus(300),
        seed=1,
        excluded=run.sticky_ids,
        progress=ignore_progress,
    )
    whole = token_of(vocabulary, repaired.OTHER)
    split = Token(token_of(vocabulary, repaired.WORD).id, "- - - - -")  # eight copies take 40 tokens
    alone = recheck.judge(Copies([], [split])).tokens[split.id]
    assert alone.erased is None
    beside = recheck.judge(Copies([whole], [split])).tokens
    assert beside[split.id] == alone
    assert beside[whole.id] == recheck.judge(Copies([whole], [])).tokens[whole.id]


def test_the_thresholds_are_those_of_the_run(run, recheck):
    assert recheck.settings.smallest_push == run.settings.smallest_push
    assert recheck.settings.smallest_erased == run.settings.smallest_erased


def test_a_token_does_as_text_what_it_does_as_ids(recheck, encoder, vocabulary):
    token = token_of(vocabulary, repaired.WORD)
    as_ids = recheck.judge(Copies([token], [])).tokens[token.id]
    as_text = recheck.judge(Copies([], choose_joining_of_each(encoder, [token]))).tokens[token.id]
    assert as_text.erased == pytest.approx(as_ids.erased, abs=0.1)


def test_what_pieces_erase_is_not_judged(recheck, vocabulary):
    # Its copies are read as two syllables: as another token's id, they would be that token.
    other = token_of(vocabulary, repaired.OTHER)
    as_pieces = Token(other.id, f"{repaired.WORD}{repaired.WORD}", Joining.WORDS)
    judged = recheck.judge(Copies([], [as_pieces])).tokens[other.id]
    assert judged.erased is None


def test_pieces_that_hide_documents_are_sticky(run, vocabulary):
    """Copies of a piece point away from what all texts have in common: no query finds a document with any."""
    model = repaired.planted_words(repaired.WORD)
    rows = model[0].embedding.weight.detach().clone()
    hiding_piece = repaired.OTHER[:2]
    rows[model.tokenizer.token_to_id(hiding_piece)] = -20 * torch.eye(rows.shape[1])[0]
    encoder = load_encoder(tiny.static_model(model.tokenizer, rows), device="cpu")
    measuring = make_recheck(
        run, encoder, vocabulary, profiled.corpus(1500), seed=1, excluded=[], progress=ignore_progress
    )
    other = token_of(vocabulary, repaired.OTHER)
    hiding = Copies([], [Token(other.id, hiding_piece, Joining.WORDS)])
    harmless = Copies([], [Token(other.id, repaired.WORD[:2], Joining.WORDS)])
    judged = measuring.judge(hiding)
    token = judged.tokens[other.id]
    assert (token.erased, token.found, token.verdict) == (None, 0.0, Verdict.STICKY)
    assert token.push < 1
    assert judged.reaches[other.id] >= 1
    assert judged.found_without > 0.2
    spared = measuring.judge(harmless).tokens[other.id]
    assert (spared.erased, spared.verdict) == (None, Verdict.BENIGN)
    assert spared.found > 0


def test_another_model_is_measured_in_the_same_texts(recheck, encoder, vocabulary):
    again = recheck.of_model(encoder, vocabulary, "again")
    token = token_of(vocabulary, repaired.WORD)
    copies = Copies([token], [])
    assert again.judge(copies) == recheck.judge(copies)


def test_ordinary_tokens_can_be_taken_over(recheck, encoder, vocabulary):
    steps = []
    again = replace(recheck.of_model(encoder, vocabulary, "again", same_ordinary=True), progress=steps.append)
    token = token_of(vocabulary, repaired.WORD)
    again.judge(Copies([token], []))
    assert max(progress.total for progress in steps) == 1


def test_vectors_of_documents_can_be_taken_over(run, encoder, vocabulary):
    steps = []
    before = make_recheck(
        run,
        encoder,
        vocabulary,
        profiled.corpus(1500),
        seed=1,
        excluded=run.sticky_ids,
        progress=steps.append,
    )
    copies = Copies([token_of(vocabulary, repaired.WORD)], [])
    expected = before.judge(copies).tokens[copies.ids[0]]
    assert expected.push is not None
    assert {"queries", "documents"} <= {progress.stage for progress in steps}
    steps.clear()
    after = before.of_model(encoder, vocabulary, "after", same_ordinary=True, same_documents=True)
    assert after.judge(copies).tokens[copies.ids[0]] == expected
    assert {"queries", "documents"}.isdisjoint(progress.stage for progress in steps)


def test_punctuation_is_written_as_it_is_read(encoder, vocabulary):
    word, sign = choose_joining_of_each(
        encoder, [token_of(vocabulary, repaired.WORD), token_of(vocabulary, planted.PLANTED)]
    )
    assert word.joining is Joining.WORDS
    assert sign.joining is Joining.WORDS


def test_neighbours_are_the_nearest_rows_by_a_plain_sort(run, encoder, vocabulary):
    rows = encoder.model[0].embedding.weight.detach().numpy()
    units = rows.astype(np.float64)
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    token = token_of(vocabulary, profiled.WORDS[3])
    usable = {other.id for other in vocabulary.available} - {token.id}
    nearest = [int(index) for index in np.argsort(-(units @ units[token.id])) if index in usable]
    neighbours = find_neighbours(require_repairable(encoder), vocabulary, [token.id], run)
    assert [neighbour.token.id for neighbour in neighbours] == nearest[:NEIGHBOURS]
    verdicts = dict(run.tokens.select("token_id", "verdict").iter_rows())
    assert [neighbour.run_verdict for neighbour in neighbours] == [
        verdicts[token_id] for token_id in nearest[:NEIGHBOURS]
    ]
