"""MTEB through the editing wrapper, on MTEB's own mock tasks: nothing is downloaded."""

import tempfile
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

import impact_files as files
import planted
from naming import naming, says
from stickytoken.data.tasks import PAPER_TASKS, MtebTask, evaluate
from stickytoken.impacts import ImpactSettings, Side, impact
from stickytoken.impacts._editing import Condition, Kind
from stickytoken.impacts._mteb import EditingEncoder, edit_task
from stickytoken.insertion import Placement, Token
from stickytoken.settings.impact import Edits

mteb = pytest.importorskip("mteb")
from datasets import Dataset, DatasetDict  # noqa: E402
from mteb import mocks  # noqa: E402

# Libraries of MTEB raise warnings of their own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

CLEAN = Condition(Kind.CLEAN, (), 0, 1)
SETTINGS = ImpactSettings(copies=3, placement=Placement.RANDOM, side=Side.DOCUMENT, seeds=1, resamples=100)
KINDS = (mocks.MockSTSTask, mocks.MockRetrievalTask, mocks.MockClusteringTask, mocks.MockClassificationTask)
OPTIONS = {"batch_size": 32, "show_progress_bar": False}


def condition_of(encoder, word, seed=1):
    return Condition(Kind.STICKY, (Token(files.token_id(encoder, word), word),), 0, seed)


def plain(model, task, cache=None):
    quiet = {"co2_tracker": False, "show_progress_bar": False, "encode_kwargs": OPTIONS}
    return mteb.evaluate(model, task, cache=cache, **quiet).task_results[0].scores


class Similarity(mocks.MockSTSTask):
    edit = staticmethod(lambda texts: texts)  # beforehand

    def load_data(self, **_):
        with tempfile.TemporaryDirectory() as folder:
            rows = pl.read_ndjson(files.sts(Path(folder))).to_dict(as_series=False)
        rows |= {column: self.edit(rows[column]) for column in ("sentence1", "sentence2")}
        self.dataset = DatasetDict({"test": Dataset.from_dict(rows)})
        self.data_loaded = True


class Grouping(mocks.MockClusteringTask):
    edit = staticmethod(lambda texts: texts)

    def load_data(self, **_):
        texts, labels = zip(*files.topical_texts(60), strict=True)
        rows = {"sentences": [self.edit(list(texts))], "labels": [[int(label[-1]) for label in labels]]}
        self.dataset = DatasetDict({"test": Dataset.from_dict(rows)})
        self.data_loaded = True


@pytest.mark.parametrize("kind", KINDS)
def test_without_tokens_scores_are_those_of_mteb_alone(encoder, kind):
    assert plain(EditingEncoder(encoder, CLEAN, SETTINGS, 0), kind()) == plain(encoder.model, kind())


@pytest.mark.parametrize("kind", [Similarity, Grouping])
def test_with_tokens_scores_are_those_of_texts_edited_beforehand(encoder, kind):
    wrapped = EditingEncoder(encoder, condition_of(encoder, "river"), SETTINGS, 3)
    plain_score = plain(wrapped, kind())
    edited = kind()
    edited.edit = wrapped.edit
    assert plain_score == plain(encoder.model, edited)
    assert plain_score != plain(encoder.model, kind())


def test_a_side_is_edited_alone(encoder):
    texts = []

    class Spy(EditingEncoder):
        def edit(self, given, role=None):
            texts.append((list(given), super().edit(given, role)))
            return texts[-1][1]

    splits = len(mocks.MockRetrievalTask().metadata.eval_splits)
    for side, count in ((Side.QUERY, 1), (Side.DOCUMENT, 1), (Side.BOTH, 2)):
        texts.clear()
        condition = condition_of(encoder, "river")
        plain(Spy(encoder, condition, replace(SETTINGS, side=side), 3), mocks.MockRetrievalTask())
        assert len(texts) == count * splits
        for original, edited in texts:
            assert all(text.split().count("river") == 3 for text in edited)
            assert [" ".join(w for w in text.split() if w != "river") for text in edited] == original


def test_no_condition_is_given_anothers_vectors_or_scores(encoder, tmp_path):
    """Conditions deliberately share a cache keyed by text and MTEB's result cache."""
    from mteb.cache import ResultCache
    from mteb.models.cache_wrappers import CachedEmbeddingWrapper

    conditions = [CLEAN, condition_of(encoder, "river"), condition_of(encoder, "song")]
    alone = [plain(EditingEncoder(encoder, condition, SETTINGS, 3), Similarity()) for condition in conditions]
    cache = ResultCache(tmp_path / "results")
    shared = []
    for condition in conditions:
        model = EditingEncoder(encoder, condition, SETTINGS, 3)
        # The cache stands behind the edit, so its keys are the edited texts.
        model._inner = CachedEmbeddingWrapper(model._inner, tmp_path / "vectors")
        shared.append(plain(model, Similarity(), cache))
    assert shared == alone
    assert len({str(scores) for scores in alone}) == 3
    metas = [EditingEncoder(encoder, condition, SETTINGS, 3).mteb_model_meta for condition in conditions]
    assert len({(meta.name, meta.revision) for meta in metas}) == 3


def test_the_preset_without_data_measures_what_it_has_and_fails_at_the_end(bert_folder, tmp_path):
    options = ["--preset", "paper", "--tokens", "river", "--set", "repetitions=1", "--set", "resamples=100"]
    saying = naming("Banking77Classification", "SummEval", "cache")
    planted.assert_refused("impact", bert_folder, *options, "--out", tmp_path / "out", saying=saying)
    path = files.sts(tmp_path)
    result = planted.command("impact", bert_folder, "--task", path, *options, "--out", tmp_path / "both")
    assert result.exit_code == 1
    assert says(result.stdout, "sts", "named tokens", "spearman")
    (line,) = [line for line in planted.lines_of(result.stderr) if line.startswith("error: not run")]
    assert len(set(PAPER_TASKS)) == 16
    assert says(line, *PAPER_TASKS)


def test_a_session_for_a_task_that_failed_encodes_nothing_of_the_others_again(encoder, tmp_path):
    tasks = [files.sts(tmp_path), "Banking77Classification"]
    options = {"tokens": [files.token_id(encoder, "river")], "settings": SETTINGS, "out": tmp_path / "out"}
    first = impact(encoder, tasks, **options)
    assert list(first.failed) == ["Banking77Classification"]
    again = files.Counting(encoder)
    second = impact(again, tasks, **options)
    assert again.seen == []
    assert second.result.sequences == first.result.sequences > 0
    assert second.scores.equals(first.scores)


@pytest.mark.parametrize(("placement", "count"), [(Placement.RANDOM, 3), (Placement.SUFFIX, 1)])
def test_repetitions_that_edit_texts_alike_are_evaluated_once(encoder, tmp_path, placement, count):
    settings = replace(SETTINGS, seeds=3, placement=placement)
    tokens = [files.token_id(encoder, "river")]
    result = impact(encoder, Similarity(), tokens=tokens, settings=settings, out=tmp_path / "out")
    # Clean, the token and its eight benign ones, sixty pairs each.
    assert result.result.sequences == (1 + 9 * count) * 120
    scores = result.scores.filter(kind="named")["score"].to_list()
    assert len(set(scores)) == count
    condition = replace(condition_of(encoder, "river", settings.seed + 2), repetition=2)
    wrapped = EditingEncoder(encoder, condition, settings, 3)
    assert scores[2] == pytest.approx(evaluate(wrapped, MtebTask(Similarity())))


def test_the_edits_of_the_paper_are_made_before_mteb_scores_a_task(encoder, tmp_path):
    settings = ImpactSettings(edits=Edits.PAPER, resamples=100)
    tokens = [files.token_id(encoder, "river"), files.token_id(encoder, "song")]
    result = impact(encoder, [Similarity()], tokens=tokens, settings=settings, out=tmp_path / "out")
    task = MtebTask(Similarity())
    task.task.load_data()
    assert result.scores["kind"].to_list() == ["clean", "named", "benign"]
    assert result.scores["score"][0] == pytest.approx(evaluate(encoder.model, task))
    for kind in ("named", "benign"):
        is_benign = kind == "benign"
        records = [record for record in result.record.tokens if (record.kind == "benign") is is_benign]
        copied = tuple(Token(record.token_id, record.text) for record in records)
        assert len(copied) == 2
        edited, count = edit_task(task, Condition(Kind.STICKY, copied, 0, settings.seed, draws_token=True))
        score = result.scores.filter(kind=kind)["score"].item()
        assert score == pytest.approx(evaluate(encoder.model, edited))
    assert count == 60


@pytest.mark.parametrize(("side", "edited"), [(Side.QUERY, 4), (Side.DOCUMENT, 4), (Side.BOTH, 8)])
def test_only_the_texts_of_the_edited_side_are_counted_as_edited(encoder, tmp_path, side, edited):
    settings = replace(SETTINGS, side=side)
    tokens = [files.token_id(encoder, "river")]
    task = mocks.MockRetrievalTask()
    result = impact(encoder, [task], tokens=tokens, settings=settings, out=tmp_path / "out")
    (record,) = result.result.tasks
    assert (record.texts, record.edited) == (8, edited)
