"""Models with copies in their documents, evaluated by MTEB on a task of local data."""

import re
from pathlib import Path

import pytest

import planted
import tiny
from naming import naming
from stickytoken.errors import InputError

pytest.importorskip("mteb", reason="mteb is not installed")
import mteb
from datasets import Dataset
from mteb import mocks
from mteb.models.cache_wrappers import CachedEmbeddingWrapper
from torch.utils.data import DataLoader

from stickytoken.adapters.mteb import WithCopies, WithCopiesInAnswers

# Libraries of MTEB raise warnings of their own.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PLANTED = planted.PLANTED
HIDING = "able"  # hides documents with copies behind the best ten
PAGE = (Path(__file__).resolve().parents[2] / "docs" / "audit.md").read_text("utf-8")
TEXTS = tiny.sentences(60)
ANSWERS = {f"q{number}": {f"d{number}": 2, f"d{number + 20}": 1, f"d{number + 1}": 0} for number in range(20)}
CANDIDATES = {
    query: [f"d{(int(query[1:]) * 7 + step) % 60}" for step in range(0, 60, 3)] for query in ANSWERS
}


class Search(mocks.MockRetrievalTask):
    """Queries that share words with the first of their two relevant documents."""

    metadata = mocks.MockRetrievalTask.metadata.model_copy(update={"name": "Local", "eval_splits": ["test"]})
    queries = tuple(ANSWERS)
    edited = frozenset()  # documents that have copies beforehand
    token = PLANTED
    ranked = None

    def load_data(self, **_):
        corpus = [{"id": f"d{number}", "text": text} for number, text in enumerate(TEXTS)]
        for row in corpus:
            row["title"] = "a title"
            if row["id"] in self.edited:
                row["title"] = f"{self.token} {self.token} {self.token} a title"
        queries = [
            {"id": query, "text": " ".join(TEXTS[int(query[1:])].split()[:3])} for query in self.queries
        ]
        split = {"corpus": Dataset.from_list(corpus), "queries": Dataset.from_list(queries)}
        split |= {"relevant_docs": {query: dict(ANSWERS[query]) for query in self.queries}}
        self.dataset = {"default": {"test": split | {"top_ranked": self.ranked}}}
        self.data_loaded = True

    def unload_data(self):
        self.data_loaded = False


class Shortest(Search):
    """A task whose rankings are so short that answers with copies fall behind them."""

    k_values = (1, 10)


class Reranking(Search):
    ranked = CANDIDATES


def one_query(query, kind, token):
    """The task of one query, whose answers have copies beforehand."""
    task = kind()
    task.token = token
    task.queries = (query,)
    task.edited = {document for document, score in ANSWERS[query].items() if score}
    return task


@pytest.fixture(scope="module")
def model():
    return planted.planted_model(3)


class BodyReader(mteb.models.SentenceTransformerEncoderWrapper):
    """Encodes documents by their title and body, as EmbeddingGemma does in MTEB."""

    def encode(self, inputs, **options):
        if "body" in inputs.dataset.column_names:
            columns = inputs.dataset.to_dict()
            texts = [f"{title} {body}" for title, body in zip(columns["title"], columns["body"], strict=True)]
            inputs = DataLoader(Dataset.from_dict({"text": texts}), batch_size=inputs.batch_size)
        return super().encode(inputs, **options)


def evaluate(model, task, cache=None):
    quiet = {"co2_tracker": False, "show_progress_bar": False}
    (result,) = mteb.evaluate(model, task, cache=cache, **quiet).task_results
    return {name: score for name, score in result.scores["test"][0].items() if "_at_" in name}


@pytest.mark.parametrize("kind", [Search, Reranking])
def test_all_documents_have_copies_and_no_query_has(model, kind):
    edited = kind()
    edited.token = HIDING
    edited.edited = {f"d{number}" for number in range(len(TEXTS))}
    with_copies = evaluate(WithCopies(model, f" {HIDING}", 3), kind())
    assert with_copies == pytest.approx(evaluate(model, edited), nan_ok=True)
    assert with_copies["ndcg_at_10"] < evaluate(model, kind())["ndcg_at_10"]


@pytest.mark.parametrize(("kind", "token"), [(Search, PLANTED), (Reranking, PLANTED), (Shortest, HIDING)])
def test_each_query_is_searched_as_if_its_answers_alone_had_copies(model, kind, token):
    task = kind()
    in_answers = evaluate(WithCopiesInAnswers(model, token, task, 3), task)
    alone = [evaluate(model, one_query(query, kind, token)) for query in ANSWERS]
    for metric in ("ndcg_at_10", "ndcg_at_1", "recall_at_10", "map_at_10", "mrr_at_10"):
        assert in_answers[metric] == pytest.approx(sum(scores[metric] for scores in alone) / 20, abs=2e-5)
    assert in_answers["ndcg_at_10"] != evaluate(model, kind())["ndcg_at_10"]


def test_a_model_that_reads_titles_and_bodies_reads_the_copies_once(model):
    class CopiesInBodies(Search):
        def load_data(self, **options):
            super().load_data(**options)
            split = self.dataset["default"]["test"]
            split["corpus"] = split["corpus"].map(
                lambda row: {"text": f"{HIDING} {HIDING} {HIDING} {row['text']}"}
            )

    reader = BodyReader(model)
    with_copies = evaluate(WithCopies(reader, HIDING, 3), Search())
    assert with_copies == pytest.approx(evaluate(reader, CopiesInBodies()), nan_ok=True)
    plain = evaluate(reader, Search())
    assert with_copies["ndcg_at_10"] < plain["ndcg_at_10"]
    task = Search()
    assert evaluate(WithCopiesInAnswers(reader, HIDING, task, 3), task)["ndcg_at_10"] < plain["ndcg_at_10"]


def test_results_lie_beside_those_of_the_model_and_load_again(model, tmp_path):
    task = Search()
    plain = mteb.models.SentenceTransformerEncoderWrapper(model)
    tokens = (PLANTED, "<a>", "|a|", "A", "a", "\n/\u202e" + "x" * 300)
    models = [plain, WithCopiesInAnswers(model, PLANTED, task), WithCopies(plain, PLANTED, 3)]
    models += [WithCopies(plain, token) for token in tokens]
    cache = mteb.ResultCache(tmp_path / "results")
    scores = [evaluate(each, task, cache) for each in models]
    folders = {each.mteb_model_meta.experiment_name for each in models}
    assert len({str(folder).lower() for folder in folders}) == len(models)
    for each, score in zip(models, scores, strict=True):
        (loaded,) = cache.load_results([each.mteb_model_meta], [task]).model_results
        assert loaded.task_results[0].scores["test"][0]["ndcg_at_10"] == score["ndcg_at_10"]
        assert evaluate(each, task, cache) == pytest.approx(score, abs=1e-6, nan_ok=True)
    assert len({score["ndcg_at_10"] for score in scores[:3]}) == 3


def test_vectors_that_mteb_caches_are_those_of_the_edited_texts(model, tmp_path):
    inner = mteb.models.SentenceTransformerEncoderWrapper(model)
    expected = evaluate(WithCopies(inner, PLANTED), Search())
    evaluate(CachedEmbeddingWrapper(inner, tmp_path), Search())
    outside = CachedEmbeddingWrapper(WithCopies(inner, PLANTED), tmp_path)
    assert evaluate(outside, Search())["ndcg_at_10"] == expected["ndcg_at_10"]


def test_what_cannot_be_measured_is_refused(model):
    def refused(saying, do, *arguments):
        with pytest.raises(InputError, match=saying):
            do(*arguments)

    refused(naming("token", "' '"), WithCopies, model, " ")
    refused(naming("copies", 0), WithCopies, model, PLANTED, 0)
    refused(naming("model", "'a name'"), WithCopies, "a name", PLANTED)
    similarity = mocks.MockSTSTask()
    refused(naming(similarity.metadata.name), evaluate, WithCopies(model, PLANTED), similarity)
    other = mocks.MockRetrievalTask()
    for task in (Reranking(), Search()):
        task.data_loaded = False
        refused(naming(other.metadata.name), evaluate, WithCopiesInAnswers(model, PLANTED, task), other)


def test_the_example_of_the_page(model, monkeypatch, tmp_path):
    (example,) = re.findall(r"^```python\n(import mteb\n.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    monkeypatch.setattr(mteb, "get_model", lambda _: mteb.models.SentenceTransformerEncoderWrapper(model))
    monkeypatch.setattr(mteb, "get_task", lambda _: Search())
    monkeypatch.setattr(
        mteb.evaluate, "__kwdefaults__", mteb.evaluate.__kwdefaults__ | {"cache": mteb.ResultCache(tmp_path)}
    )
    names = {}
    exec(example.replace("[CLS]", PLANTED), names)
    assert len(set(names["scores"])) == 3
