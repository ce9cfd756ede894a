"""Queries and documents, held against `encode_query`, `encode_document` and the library's evaluator."""

import json

import numpy as np
import polars as pl
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator

import planted
import profiled
import tiny
import tiny_architectures as architectures
from naming import naming
from stickytoken import audit, load_encoder
from stickytoken.audits import AuditSettings, _index
from stickytoken.cleaning import Cleaner, CleaningRules
from stickytoken.data.metrics import RetrievalTask
from stickytoken.data.tasks import load_task
from stickytoken.detection.run import encoder_for
from stickytoken.encoders.roles import Role, describe_prompts, in_role, prompts_of
from stickytoken.errors import InputError, RunError, StickyTokenWarning
from stickytoken.evaluation import compare
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods.profile.documents import choose_collection, encode_documents
from stickytoken.methods.runner import Runner
from stickytoken.settings.prompting import Prompting

TEXTS = ["the old river sings", "a bird", "stone under a tree"]
CLOSE = {"rtol": 0, "atol": 1e-5}
PROMPTS = {"query": "song: market market ", "document": "garden copper: "}


def encoder_of_documents(model, **options):
    return in_role(load_encoder(model, **options), Role.DOCUMENT)


@pytest.fixture(scope="module")
def prompted(tmp_path_factory):
    """A model whose prompts for queries and documents change what is found."""
    root = tmp_path_factory.mktemp("prompted")
    model = tiny.sentence_transformer(tiny.bert_backbone(root / "backbone"), prompts=PROMPTS)
    return architectures.saved(model, root / "model")


@pytest.fixture(scope="module")
def library(prompted):
    return SentenceTransformer(str(prompted), device="cpu")


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """A BEIR folder whose queries are parts of their documents."""
    folder = tmp_path_factory.mktemp("collection")
    (folder / "qrels").mkdir()
    documents = {f"d{number}": text for number, text in enumerate(tiny.sentences(60))}
    queries = {f"q{number}": " ".join(documents[f"d{number}"].split()[:3]) for number in range(25)}
    for name, texts in (("corpus", documents), ("queries", queries)):
        rows = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
    lines = [f"q{number}\td{number}\t1" for number in range(25)]
    (folder / "qrels/test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


def check_roles(encoder, library):
    for role, encode in (
        (Role.QUERY, library.encode_query),
        (Role.DOCUMENT, library.encode_document),
        (None, library.encode),
    ):
        np.testing.assert_allclose(in_role(encoder, role).encode(TEXTS), encode(TEXTS), **CLOSE)


def test_each_role_gives_the_vectors_of_the_library(prompted, library):
    check_roles(load_encoder(library), library)
    loaded = encoder_of_documents(prompted, device="cpu")
    np.testing.assert_allclose(loaded.encode(TEXTS), library.encode_document(TEXTS), **CLOSE)
    check_roles(loaded, library)
    assert prompts_of(loaded) == PROMPTS


def test_each_role_takes_its_route(backbone):
    mean, cls = (architectures.stacked(backbone("bert"), pooling=pooling) for pooling in ("mean", "cls"))
    library = architectures.router(mean, cls)
    check_roles(load_encoder(library), library)
    check_roles(encoder_of_documents(library), library)
    assert (
        describe_prompts(encoder_of_documents(library)) == "routes: document for documents, query for queries"
    )


def test_an_object_with_methods_for_roles_is_called_by_role(library):
    class Model:
        tokenizer = library.tokenizer
        encode = library.encode
        encode_query = library.encode_query
        encode_document = library.encode_document

    check_roles(load_encoder(Model()), library)
    identities = {in_role(load_encoder(Model()), role).identify() for role in (None, *Role)}
    assert len(identities) == 3


def test_an_object_may_have_a_method_for_one_role_only(library):
    class Model:
        tokenizer = library.tokenizer
        encode = library.encode
        encode_query = library.encode_query

    documents = encoder_of_documents(Model())
    assert documents is in_role(documents, None)
    np.testing.assert_allclose(documents.encode(TEXTS), library.encode(TEXTS), **CLOSE)
    queries = in_role(documents, Role.QUERY)
    np.testing.assert_allclose(queries.encode(TEXTS), library.encode_query(TEXTS), **CLOSE)
    assert in_role(queries, Role.DOCUMENT).identify() == documents.identify() != queries.identify()


def test_a_prompt_that_the_user_names_is_put_before_everything(prompted, library):
    encoder = encoder_of_documents(prompted, device="cpu", prompt="query")
    assert prompts_of(encoder) == {"query": PROMPTS["query"], "document": PROMPTS["query"]}
    assert in_role(encoder, Role.QUERY) is encoder
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode(TEXTS, prompt_name="query"), **CLOSE)


@pytest.mark.parametrize("prompt", ["document", PROMPTS["document"]])
def test_queries_keep_their_prompt_beside_one_for_documents(prompted, library, prompt):
    encoder = encoder_of_documents(prompted, device="cpu", prompt=prompt)
    assert prompts_of(encoder) == {"query": PROMPTS["query"], "document": PROMPTS["document"]}
    queries = in_role(encoder, Role.QUERY)
    np.testing.assert_allclose(queries.encode(TEXTS), library.encode_query(TEXTS), **CLOSE)
    np.testing.assert_allclose(encoder.encode(TEXTS), library.encode_document(TEXTS), **CLOSE)


def test_a_query_prompt_is_put_before_queries_only(tmp_path):
    model = tiny.sentence_transformer(tiny.bert_backbone(tmp_path / "backbone"))
    encoder = encoder_of_documents(model, prompt=Prompting("tree: ", query_prompt="song: "))
    assert prompts_of(encoder) == {"query": "song: ", "document": "tree: "}
    queries = in_role(encoder, Role.QUERY)
    np.testing.assert_allclose(queries.encode(TEXTS), model.encode(TEXTS, prompt="song: "), **CLOSE)
    assert queries.content_ids(["a"])[0] == encoder.own_tokenizer.encode_many(["song: a"])[0]


def test_a_document_prompt_that_the_library_passes_over_is_named(tmp_path):
    prompts = {"query": "song: ", "document": "", "passage": "tree: "}
    model = tiny.sentence_transformer(
        tiny.bert_backbone(tmp_path / "backbone"), prompts=prompts, default_prompt_name="query"
    )
    with pytest.warns(StickyTokenWarning, match=naming("'passage'")):
        encoder = encoder_of_documents(model)
    np.testing.assert_allclose(encoder.encode(TEXTS), model.encode_document(TEXTS), **CLOSE)
    named = encoder_of_documents(model, prompt="passage")
    assert prompts_of(named) == {"query": "song: ", "document": "tree: "}


def test_the_model_alone_has_one_role(bert_folder):
    encoder = load_encoder(bert_folder)
    assert all(in_role(encoder, role) is encoder for role in (None, *Role))
    assert describe_prompts(encoder) is None


def test_embed_says_how_documents_are_encoded(prompted, library, tmp_path):
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    for options, encode in (((), library.encode), (("--route", "document"), library.encode_document)):
        out = tmp_path / f"{len(options)}.parquet"
        result = planted.command(
            "embed", prompted, "--input", tmp_path / "texts.txt", "--out", out, "--device", "cpu", *options
        )
        assert ("--route document" in result.stderr) is not bool(options)
        vectors = pl.read_parquet(out)["vector"].to_numpy()
        np.testing.assert_allclose(vectors, encode(TEXTS), **CLOSE)


def ndcg_of_library(library, task):
    evaluator = InformationRetrievalEvaluator(
        task.queries,
        task.documents,
        {query: set(scores) for query, scores in task.relevant.items()},
        ndcg_at_k=[10],
        show_progress_bar=False,
    )
    return 100 * next(value for name, value in evaluator(library).items() if name.endswith("cosine_ndcg@10"))


def test_retrieval_scores_as_the_evaluator_of_the_library(prompted, library, collection):
    task, _ = load_task(collection)
    assert isinstance(task, RetrievalTask)
    expected = ndcg_of_library(library, task)
    comparison = compare(load_encoder(prompted, device="cpu"), task)
    assert comparison.scores[0].main_score == pytest.approx(expected, abs=1e-6)
    assert comparison.prompts == PROMPTS
    # Without the prompts, the score is another one.
    without = compare(load_encoder(prompted, device="cpu", prompt=""), task)
    assert abs(without.scores[0].main_score - expected) > 1


def test_pairs_of_sentences_have_no_roles(library, tmp_path):
    pairs = tiny.sentences(20)
    rows = [
        {"sentence1": first, "sentence2": second, "score": number}
        for number, (first, second) in enumerate(zip(pairs[:10], pairs[10:], strict=True))
    ]
    (tmp_path / "sts.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task, _ = load_task(tmp_path / "sts.jsonl")
    vectors = {role: library.encode(list(texts)) for role, texts in task.texts.items()}
    expected = task.scores("spearman", task.outcomes(vectors, 1)[None])[0]
    comparison = compare(encoder_of_documents(library), task)
    assert comparison.scores[0].main_score == pytest.approx(100 * expected)
    assert comparison.prompts == {"text": ""}


def test_code_that_tells_roles_apart_itself_gets_the_prompts_of_the_user(library, backbone):
    named = load_encoder(library, prompt=Prompting("tree: ", query_prompt="song: ")).library_model()
    for encode, prompt in (
        (named.encode_query, "song: "),
        (named.encode_document, "tree: "),
        (named.encode, "tree: "),
    ):
        np.testing.assert_allclose(encode(TEXTS), library.encode(TEXTS, prompt=prompt), **CLOSE)
    assert library.prompts["query"] == PROMPTS["query"]
    mean, cls = (architectures.stacked(backbone("bert"), pooling=pooling) for pooling in ("mean", "cls"))
    routed = architectures.router(mean, cls)
    found = encoder_of_documents(routed).library_model()
    np.testing.assert_allclose(found.encode_query(TEXTS), routed.encode_query(TEXTS), **CLOSE)


def test_code_that_tells_roles_apart_gets_no_single_route_of_a_shortened_model(backbone):
    mean, cls = (architectures.stacked(backbone("bert"), pooling=pooling) for pooling in ("mean", "cls"))
    routed = architectures.router(mean, cls)
    routed.prompts = {"query": "song: ", "document": "tree: "}
    for route in (None, "document"):
        shortened = encoder_of_documents(routed, layer=1, route=route)
        with pytest.raises(InputError, match=naming("layer", "query")):
            shortened.library_model()
    # Whoever names the route of queries sends documents through it, too.
    through_one = load_encoder(routed, layer=1, route="query")
    expected = through_one.encode(TEXTS)
    for encode in ("encode", "encode_query", "encode_document"):
        vectors = getattr(through_one.library_model(), encode)(TEXTS)
        np.testing.assert_allclose(vectors, expected, **CLOSE)


@pytest.fixture(scope="module")
def run(prompted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("role-run") / "run"
    return profiled.detect_in_documents(load_encoder(prompted, device="cpu"), folder, sample=4)


def test_a_run_measures_documents_and_records_both_prompts(run):
    parts = run.record.identity_parts
    assert (parts["encoder"]["prompt"], parts["queries"]["prompt"]) == (PROMPTS["document"], PROMPTS["query"])
    assert run.record.prompts == PROMPTS


def test_a_run_searches_documents_with_query_vectors(run, library):
    encoder = encoder_of_documents(library)
    corpus = profiled.corpus(1200)
    runner = Runner.in_memory(encoder, ignore_progress)
    panel = encode_documents(encoder, corpus, run.plan.documents, runner, run.settings.inserted_as)
    queries = library.encode_query(
        list(choose_collection(encoder, corpus).queries), normalize_embeddings=True
    )
    np.testing.assert_allclose(panel.search.queries, queries, **CLOSE)


def test_a_model_that_encodes_queries_otherwise_is_not_that_of_the_run(run, prompted):
    changed = SentenceTransformer(str(prompted), device="cpu")
    assert encoder_for(changed, run, "audit").name == load_encoder(changed).name
    changed.prompts = PROMPTS | {"query": "bird: "}
    with pytest.raises(RunError, match=naming("prompt of queries")):
        encoder_for(changed, run, "audit")


def test_an_audit_searches_with_query_vectors(run, library, collection):
    settings = AuditSettings(tokens=1, stuffed=8)
    finished = audit(run, collection, settings=settings)
    assert finished.summary()["prompts"] == PROMPTS
    encoder = encoder_of_documents(library)
    index = _index.read_index(collection, None, None, None, encoder, settings, Cleaner(CleaningRules()))
    search = _index.encode_index(index, encoder, settings, Runner.in_memory(encoder, ignore_progress))
    queries = library.encode_query(list(index.queries.texts), normalize_embeddings=True)
    np.testing.assert_allclose(search.queries, queries, **CLOSE)


def test_the_command_prints_and_records_the_prompts(prompted, collection):
    options = ("--task", collection, "--device", "cpu", "--format", "json")
    result = planted.command("evaluate", prompted, *options)
    assert result.exit_code == 0, result.stderr
    line = f"prompts: {PROMPTS['document']!r} before documents, {PROMPTS['query']!r} before queries"
    assert line in result.stderr
    assert json.loads(result.stdout)["prompts"] == PROMPTS
