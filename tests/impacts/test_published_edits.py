"""The edits and the tests of Chen et al. (2025): ``--preset paper``, and the setting ``edits=paper``."""

import json
import math
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import spearmanr

import impact_files as files
import planted
from naming import naming, says
from stickytoken.data.tasks import MtebTask, load_task
from stickytoken.errors import InputError
from stickytoken.impacts import ImpactSettings, impact
from stickytoken.impacts._editing import Condition, Kind, edit_as_published
from stickytoken.impacts._running import find_edited_indices
from stickytoken.impacts._statistics import paired_test
from stickytoken.insertion import Token
from stickytoken.settings.impact import Edits

PUBLISHED = json.loads((Path(__file__).with_name("published_edits.json")).read_text("utf-8"))
SEED = 42
PAPER = ImpactSettings(edits=Edits.PAPER, resamples=100)


@pytest.mark.parametrize("task", PUBLISHED["tasks"], ids=lambda task: task["texts"])
def test_the_displayed_edits_are_drawn_again(task):
    """The sentences themselves are other people's, so words stand for them."""
    displayed = task["edits"]
    assert len(displayed) == 10
    texts = [" ".join(["word"] * words) for _, _, words, _ in displayed]
    all_texts = [""] * task["texts_before"] + texts
    edited = list(edit_as_published(all_texts, PUBLISHED["tokens"], random.Random(SEED)))[-10:]
    expected = [
        token * copies + text if place == "prefix" else text + token * copies
        for (token, place, _, copies), text in zip(displayed, texts, strict=True)
    ]
    assert edited == expected


@settings(max_examples=30, deadline=None)
@given(st.lists(st.text("ab \n", max_size=200), max_size=8), st.integers(0, 5))
def test_a_text_gets_a_copy_for_every_ten_words_or_part_of_ten(texts, seed):
    edited = list(edit_as_published(texts, ["x", "yz"], random.Random(seed)))
    assert len(edited) == len(texts)
    for text, with_copies in zip(texts, edited, strict=True):
        copies = math.ceil(len(text.split()) / 10)
        possible = {token * copies + text for token in ("x", "yz")}
        possible |= {text + token * copies for token in ("x", "yz")}
        assert with_copies in possible


def test_the_published_t_test_is_repeated():
    benign = [
        20.04, 25.06, 37.17, 44.58, 45.41, 28.48, 18.05, 23.13, 50.64, 57.70,
        47.45, 29.77, 28.94, 26.51, 22.15, 71.36, 51.13, 37.15, 25.11, 25.19,
        28.40, 33.66, 36.79, 13.45, 35.79, 30.96, 40.48, 74.51, 63.67, 37.70,
    ]  # fmt: skip
    sticky = [
        15.02, 20.41, 35.38, 26.76, 42.14, 13.65, 26.05, 26.55, 50.55, 43.47,
        47.03, 23.11, 27.02, 24.92, 20.00, 70.95, 49.14, 37.01, 24.80, 25.17,
        29.22, 29.89, 38.38, 8.84, 35.98, 30.94, 47.20, 72.63, 63.48, 37.79,
    ]  # fmt: skip
    effects = [
        {"main": True, "drop_benign": 100 - score, "drop_sticky": 100 - lower}
        for score, lower in zip(benign, sticky, strict=True)
    ]
    test = paired_test([*effects, {"main": False}], SEED)
    assert test.tasks == 30
    assert (test.t, test.p_value, test.difference, test.cohens_d) == pytest.approx(
        (2.227, 0.0170, 2.232, 0.407), abs=6e-4
    )
    assert 0.005 < test.permutation_p < 0.05
    assert paired_test(effects[:1], SEED) is None


@pytest.fixture(scope="module")
def planted_encoder():
    return files.planted_encoder()


@pytest.fixture(scope="module")
def measured(planted_encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    tasks = [files.sts(folder), files.clustering(folder)]
    tokens = [files.token_id(planted_encoder, planted.PLANTED), files.token_id(planted_encoder, "?")]
    return impact(planted_encoder, tasks, tokens=tokens, settings=PAPER, out=folder / "out")


def test_second_sentences_are_scored_as_edited_by_hand(measured, planted_encoder):
    task, _ = load_task(measured.path.parent / "sts.jsonl")
    first = planted_encoder.encode(task.first)
    kinds = {"named": [planted.PLANTED, "?"]}
    benign_ids = [token for token in measured.record.tokens if token.kind == "benign"]
    kinds["benign"] = [token.text for token in benign_ids]
    assert measured.conditions.filter(task="sts", metric="spearman")["kind"].to_list() == ["clean", *kinds]
    for kind, tokens in kinds.items():
        edited = list(edit_as_published(task.second, tokens, random.Random(SEED)))
        second = planted_encoder.encode(edited)
        cosines = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
        score = measured.conditions.filter(task="sts", metric="spearman", kind=kind)["score"].item()
        assert score == pytest.approx(spearmanr(task.gold, cosines).statistic, abs=1e-6)


def test_the_tests_are_over_tasks(measured):
    test = measured.result.paired_test
    main = measured.effects.filter("main")
    assert test.tasks == len(main) == 2
    assert test.difference == pytest.approx((main["benign"] - main["sticky"]).mean())
    assert measured.summary()["paired_test"]["cohens_d"] == test.cohens_d
    text = (measured.path / "impact.md").read_text("utf-8")
    assert says(text, f"{test.t:.3f}")
    assert "too few tokens" not in text


def test_only_the_negatives_of_reranking_are_edited(tmp_path):
    task, _ = load_task(files.reranking(tmp_path))
    relevant = {document for scores in task.relevant.values() for document in scores if scores[document] > 0}
    edited = {list(task.documents)[index] for index in find_edited_indices(task, "document")}
    assert relevant
    assert edited == set(task.documents) - relevant


@pytest.mark.parametrize("setting", [{"copies": 3}, {"side": "both"}, {"benign": 2}, {"sticky": 1}])
def test_a_setting_without_effect_on_the_edits_is_refused(setting):
    (name,) = setting
    with pytest.raises(InputError, match=naming(name, setting[name])):
        ImpactSettings(edits=Edits.PAPER, **setting)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["STS", "PairClassification", "Classification", "Clustering", "Summarization"]
)
def test_mteb_tasks_are_edited_in_the_published_columns(name):
    pytest.importorskip("mteb")
    from mteb import mocks

    from stickytoken.impacts._mteb import _EDITED_COLUMNS, edit_task

    task = getattr(mocks, f"Mock{name}Task")()
    task.load_data()
    condition = Condition(Kind.STICKY, (Token(1, "zqx"),), 0, SEED, draws_token=True)
    edited, count = edit_task(MtebTask(task), condition)
    column = _EDITED_COLUMNS[name]
    edited_texts = 0
    for split, data in task.dataset.items():
        changed = edited.task.dataset[split]
        assert changed.column_names == data.column_names or set(changed.column_names) == set(
            data.column_names
        )
        for other in set(data.column_names) - {column}:
            assert changed[other][:] == data[other][:]
        before = json.dumps(data[column][:])
        after = json.dumps(changed[column][:])
        assert ("zqx" in after) is (split != "train")
        assert after.replace("zqx", "") == before
        edited_texts += len(_flat(data[column][:])) if split != "train" else 0
    assert count == edited_texts > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Retrieval", "Reranking"])
def test_documents_of_mteb_are_edited_unless_they_answer_a_query_of_reranking(name):
    pytest.importorskip("mteb")
    from mteb import mocks

    from stickytoken.impacts._mteb import edit_task

    task = getattr(mocks, f"Mock{name}Task")()
    task.load_data()
    condition = Condition(Kind.STICKY, (Token(1, "zqx"),), 0, SEED, draws_token=True)
    edited, count = edit_task(MtebTask(task), condition)
    edited_documents = 0
    for subset, splits in task.dataset.items():
        for split, data in splits.items():
            corpus = edited.task.dataset[subset][split]["corpus"]
            relevant = {
                document
                for scores in data["relevant_docs"].values()
                for document, score in scores.items()
                if score > 0
            }
            for document, text in zip(corpus["id"], corpus["text"], strict=True):
                is_edited = "zqx" in text
                assert is_edited is not (name == "Reranking" and document in relevant)
                edited_documents += is_edited
    assert count == edited_documents


def _flat(texts):
    if texts and not isinstance(texts[0], str):
        return [text for inner in texts for text in _flat(inner)]
    return texts
