"""What the checks of a verification say, and when they fail."""

import json
import shutil

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import repaired
import tiny
from naming import says
from stickytoken import load_encoder
from stickytoken.data.tasks import load_task
from stickytoken.encoders.roles import Role, in_role
from stickytoken.methods import Verdict
from stickytoken.repairs._fresh_process import check_fresh_process
from stickytoken.repairs._verification import (
    _Changes,
    _check_unreachable,
    check_main_score,
    check_neighbours,
    check_repaired,
    spell_other_added,
)
from stickytoken.repairs.model_folder import require_repairable, write_model
from stickytoken.repairs.records import MeasuredRecord, NeighbourRecord, RepairedTokenRecord, ScoreRecord
from stickytoken.repairs.tokenizer_edit import ModelEdit


def rechecked(push, erased, verdict=Verdict.BENIGN, found=None):
    return MeasuredRecord(push=push, erased=erased, found=found, verdict=verdict)


def test_repaired_tokens_give_the_largest_push_and_erased_share_beside_an_ordinary_token():
    check = check_repaired({"a": rechecked(0.9, 0.01), "b": rechecked(0.4, 0.05)}, 0.7, None)
    assert check.passed
    assert all(number in check.finding for number in ("5%", "0.9×", "0.7×"))
    assert "0.4×" not in check.finding


def test_the_erased_share_of_pieces_is_not_told():
    check = check_repaired({"a": rechecked(0.9, None)}, None, None)
    assert "0.9×" in check.finding
    assert "%" not in check.finding


def test_what_queries_find_is_told_beside_what_they_find_without_copies():
    measured = {"a": rechecked(0.9, None, found=0.62), "b": rechecked(0.4, 0.05, found=0.9)}
    finding = check_repaired(measured, 0.7, 0.93).finding
    assert says(finding, "62%", "93% without")
    hiding = {"a": rechecked(0.9, None, Verdict.STICKY, found=0.2)}
    failed = check_repaired(hiding, 0.7, 0.93)
    assert not failed.passed
    assert says(failed.finding, "'a'", "20% of queries")


def test_a_token_that_is_still_sticky_fails():
    measured = {"a": rechecked(0.1, 0.6, Verdict.STICKY), "b": rechecked(0.0, 0.0)}
    check = check_repaired(measured, 0.7, None)
    assert not check.passed
    assert all(part in check.finding for part in ("1 of 2", "'a'", "60% erased", "0.1×"))


def neighbour(before, after):
    sides = {
        side: MeasuredRecord(push=push, erased=erased, found=None, verdict=verdict)
        for side, (push, erased, verdict) in (("before", before), ("after", after))
    }
    return NeighbourRecord(token_id=1, token="river", near="rivers", in_run="benign", **sides)


@pytest.mark.parametrize(
    ("before", "after", "passed"),
    [
        ((0.8, 0.0, "benign"), (0.8, 0.0, "benign"), True),
        ((0.8, 0.0, "benign"), (1.7, 0.0, "sticky"), False),
        ((0.8, 0.1, "benign"), (0.8, 0.5, "sticky"), False),
        ((None, 0.1, "benign"), (None, 0.5, "sticky"), False),
        # A verdict at its limit may change though the token does not.
        ((1.55, 0.0, "benign"), (1.6, 0.0, "sticky"), True),
        ((0.8, 0.42, "sticky"), (0.8, 0.45, "sticky"), True),
    ],
)
def test_a_neighbour_is_harmed_if_it_is_sticky_and_does_more_than_before(before, after, passed):
    assert check_neighbours([neighbour(before, after)]).passed is passed


def test_a_sticky_neighbour_that_acts_no_more_than_before_is_named():
    finding = check_neighbours([neighbour((1.55, 0.0, "benign"), (1.6, 0.0, "sticky"))]).finding
    assert "act no more than before" in finding
    assert finding.endswith("'river'")


def test_a_text_is_affected_by_other_token_ids_and_by_a_new_row(pristine, tmp_path):
    original = load_encoder(pristine, device="cpu")
    mask_id, river_id = original.user_tokenizer.convert_tokens_to_ids(["[MASK]", "river"])
    write_model(pristine, tmp_path / "out", ModelEdit(plain_specials=(mask_id,)))
    plain = _Changes(original, load_encoder(tmp_path / "out", device="cpu"), {mask_id}, set())
    assert plain.affect_none_of(["a river", "a stone"])
    assert not plain.affect_none_of(["a river", "a [MASK]"])
    new_row = _Changes(original, original, {river_id}, {river_id})
    assert new_row.affect_none_of(["a stone"])
    assert not new_row.affect_none_of(["a stone", "a river"])


def test_the_check_of_other_texts_counts_those_that_are_affected(pristine):
    original = load_encoder(pristine, device="cpu")
    river_id = original.user_tokenizer.convert_tokens_to_ids("river")
    check = _Changes(original, original, {river_id}, {river_id}).check_other_texts(
        ["a river", "a stone", "a bird"]
    )
    assert check.passed
    assert says(check.finding, "2 of 3", "vectors of 2", "identical")
    assert not _Changes(original, original, {river_id}, {river_id}).check_other_texts(["a river"]).passed


def test_a_repaired_word_in_the_query_prompt_changes_all_queries(pristine, tmp_path):
    model = SentenceTransformer(str(pristine), device="cpu")
    model.prompts = {"query": "river ", "document": ""}
    model.save(str(tmp_path / "model"))
    original = load_encoder(tmp_path / "model", device="cpu")
    river_id = original.user_tokenizer.convert_tokens_to_ids("river")
    changes = _Changes(in_role(original, Role.DOCUMENT), in_role(original, Role.DOCUMENT), {river_id}, set())
    texts = ["a stone", "a bird"]  # none has the word
    assert not changes.affect_none_of(texts)
    check = changes.check_other_texts(texts)
    assert not check.passed
    assert says(check.finding, "0 of 2", "'river '")


def test_a_text_without_a_repaired_token_that_is_read_otherwise_fails(pristine, tmp_path):
    original = load_encoder(pristine, device="cpu")
    river_id, stone_id = original.user_tokenizer.convert_tokens_to_ids(["river", "stone"])
    write_model(pristine, tmp_path / "out", ModelEdit(unreachable=(river_id, stone_id)))
    repaired_model = load_encoder(tmp_path / "out", device="cpu")
    texts = ["a river", "a stone", "a bird"]
    check = _Changes(original, repaired_model, {river_id}, set()).check_other_texts(texts)
    assert not check.passed
    assert says(check.finding, "1 of 2", "'a stone'")
    assert _Changes(original, repaired_model, {river_id, stone_id}, set()).check_other_texts(texts).passed


@pytest.mark.parametrize("in_vocabulary", [False, True])
def test_other_texts_spell_the_added_tokens_that_are_not_repaired(tmp_path, in_vocabulary):
    tokenizer = tiny.wordpiece_tokenizer()
    tokenizer.add_tokens(["covid", "<doc>"], special_tokens=True)
    backbone = tiny.bert_backbone(tmp_path / "backbone", tokenizer=tokenizer)
    original_folder, folder = tmp_path / "original", tmp_path / "edited"
    tiny.sentence_transformer(backbone).save(str(original_folder))
    shutil.copytree(original_folder, folder)
    if in_vocabulary:  # so that "Covid", which becomes "covid", is no longer read in pieces
        path = folder / "tokenizer.json"
        document = json.loads(path.read_text("utf-8"))
        document["model"]["vocab"]["covid"] = len(tokenizer) - 2
        path.write_text(json.dumps(document), "utf-8")
    original, edited = (load_encoder(path, device="cpu") for path in (original_folder, folder))
    changes = _Changes(original, edited, {len(tokenizer) - 1}, set())
    texts = spell_other_added(original, changes.repaired_ids)
    assert not any("doc" in text.lower() for text in texts)
    assert changes.check_other_texts(["a river", "a covid river"]).passed
    check = changes.check_other_texts(texts)
    assert check.passed is not in_vocabulary
    assert not in_vocabulary or says(check.finding, "COVID")


@pytest.mark.parametrize(("edited", "passed"), [(False, False), (True, True)])
def test_a_token_that_a_text_still_becomes_fails(pristine, tmp_path, edited, passed):
    encoder = load_encoder(pristine, device="cpu")
    river_id = encoder.user_tokenizer.convert_tokens_to_ids("river")
    if edited:
        write_model(pristine, tmp_path / "out", ModelEdit(unreachable=(river_id,)))
        encoder = load_encoder(tmp_path / "out", device="cpu")
    token = RepairedTokenRecord(
        token_id=river_id, token="river", text="river", strategy="unreachable", reason="asked", pieces=[]
    )
    check = _check_unreachable(encoder, [token], ["a stone", "the river"])
    assert check.passed is passed
    assert says(check.finding, "20 texts" if passed else "'the river'")


@pytest.mark.slow  # another process loads the libraries
def test_the_fresh_process_compares_as_many_components_as_the_run(pristine):
    model = require_repairable(load_encoder(pristine, device="cpu", truncate_dim=8))
    same_vectors, same_ids = check_fresh_process(model, model, ["a river"], ["a stone", "the bird"])
    assert same_vectors.passed, same_vectors.finding
    assert same_ids.passed, same_ids.finding


@pytest.mark.slow
def test_the_fresh_process_says_if_no_text_fits_the_model(pristine):
    model = require_repairable(load_encoder(pristine, device="cpu", max_length=8))
    same_vectors, same_ids = check_fresh_process(model, model, ["a river"], ["a stone " * 20])
    assert not same_vectors.passed
    assert says(same_vectors.finding, "no text", "no vectors")
    assert same_ids.passed, same_ids.finding


def cosines(*exchanged):
    """Cosines that follow the scores of the pairs, but for two pairs that have exchanged theirs."""
    values = (np.arange(12) % 5 + np.linspace(0, 0.9, 12))[:, None] / 10
    values[list(exchanged)] = values[list(reversed(exchanged))]
    return values


def checked_score(folder, before, after):
    """Check a score whose outcomes are known; return its change, and the check."""
    task, _ = load_task(repaired.task_file(folder))
    metric = task.metrics[0]
    old = float(task.scores(metric, before[None])[0])
    new = float(task.scores(metric, after[None])[0])
    record = ScoreRecord(task=task.name, metric=metric, texts=24, before=old, after=new)
    return new - old, check_main_score([record], task, before, after, 1)


@pytest.mark.parametrize("other_metrics", [(), ("pearson",)])
def test_a_main_score_that_is_not_defined_fails(tmp_path, other_metrics):
    task, _ = load_task(repaired.task_file(tmp_path))
    records = [
        ScoreRecord(task=task.name, metric=metric, texts=24, before=0.5, after=0.5)
        for metric in other_metrics
    ]
    check = check_main_score(records, task, cosines(), cosines(), 1)
    assert not check.passed
    assert says(check.finding, task.metrics[0], "finite")


def test_an_unchanged_score_passes(tmp_path):
    change, check = checked_score(tmp_path, cosines(), cosines())
    assert change == 0
    assert check.passed
    assert check.finding.endswith("(no change)")


def test_a_small_fall_that_chance_may_explain_is_excused(tmp_path):
    change, check = checked_score(tmp_path, cosines(), cosines(4, 8))
    assert -0.02 <= change < -0.005
    assert check.passed
    assert "chance alone may explain it" in check.finding


def test_a_large_fall_is_not_excused_by_chance(tmp_path):
    change, check = checked_score(tmp_path, cosines(), cosines(2, 3))
    assert -0.1 <= change < -0.02
    assert not check.passed
    assert "chance alone may explain it" in check.finding


def test_a_fall_beyond_chance_fails(tmp_path):
    change, check = checked_score(tmp_path, cosines(), -cosines())
    assert change < -0.1
    assert not check.passed
    assert says(check.finding, "fell", f"{-100 * change:.2f}")
    assert "chance" not in check.finding


def test_a_rise_passes(tmp_path):
    change, check = checked_score(tmp_path, -cosines(), cosines())
    assert change > 0.1
    assert check.passed
    assert says(check.finding, "rose", f"{100 * change:.2f}")


@pytest.mark.slow  # starts another process
def test_the_fresh_process_uses_no_default_prompt_that_documents_do_not_have(pristine, tmp_path):
    prompts = {"query": "the bird ", "document": ""}
    model = SentenceTransformer(str(pristine), device="cpu", prompts=prompts, default_prompt_name="query")
    model.save(str(tmp_path / "model"))
    encoder = in_role(load_encoder(tmp_path / "model", device="cpu"), Role.DOCUMENT)
    repairable = require_repairable(encoder)
    assert repairable.encoder.prompt == ""
    same_vectors, _ = check_fresh_process(repairable, repairable, ["a river"], ["a stone", "the bird"])
    assert same_vectors.passed
