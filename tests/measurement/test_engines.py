"""One test suite for all engines: the local one and real Ray."""

import socket
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import engines
import planted
import profiled
import tiny
from interrupted import assert_same_run
from stickytoken.encoders import load_encoder
from stickytoken.errors import EncodingError, InputError, RunError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.engine import LocalEngine, Shard, TokenWork, ignore_progress
from stickytoken.measurement.ray_engine import Node, RayCluster, Share, connected, divide, ray_engine
from stickytoken.methods.std import make_plan, validation_stage
from stickytoken.vocabulary import categorize

pytestmark = pytest.mark.slow

TOKENS_A_SHARD = 6
SHARD_PROBES = TOKENS_A_SHARD * planted.SHARD_PROBES


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return profiled.save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def encoder(model):
    return load_encoder(model, device="cpu")


@pytest.fixture(scope="module", params=engines.ENGINES)
def engine(request, encoder):
    if request.param == "local":
        yield LocalEngine(encoder)
        return
    with engines.local_ray(), ray_engine(encoder, workers=2) as opened:
        yield opened


@pytest.fixture(scope="module")
def whole(encoder, tmp_path_factory):
    root = tmp_path_factory.mktemp("whole")
    return {name: METHODS[name](encoder, root / name).path for name in METHODS}


def detect_std(encoder, folder, **options):
    return engines.detect_std(encoder, folder, shard_probes=SHARD_PROBES, **options)


def detect_profile(encoder, folder, **options):
    return profiled.detect_profile(encoder, folder, shard_probes=SHARD_PROBES, **options)


METHODS = {"std": detect_std, "profile": detect_profile}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_has_the_bytes_of_one_that_a_single_process_computed(engine, encoder, whole, tmp_path, method):
    METHODS[method](encoder, tmp_path / "run", engine=engine)
    assert len(planted.shards_of(tmp_path / "run")) > 10
    assert_same_run(tmp_path / "run", whole[method])


def test_a_run_that_was_cut_off_is_continued_by_the_other_engine(engine, encoder, whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(engines.InterruptionError):
        detect_profile(encoder, folder, engine=engine, progress=engines.interrupted_after("confirm", done=15))
    before = planted.shards_of(folder)
    assert any("/confirm-" in name for name in before)
    detect_profile(encoder, folder, engine="local")
    after = planted.shards_of(folder)
    assert {name: after[name] for name in before} == before
    assert_same_run(folder, whole["profile"])


def test_every_shard_comes_back_once_with_its_rows(engine, encoder):
    stage, tokens = a_stage(encoder)
    # Shards of very different sizes do not finish in the order in which they start.
    shards = [
        Shard(k, tuple(tokens[start:stop])) for k, (start, stop) in enumerate([(0, 40), (40, 41), (41, 60)])
    ]
    found = {each.shard.index: each for each in engine.compute(TokenWork(stage), shards)}
    assert sorted(found) == [0, 1, 2]
    for shard in shards:
        each = found[shard.index]
        assert [row["token_id"] for row in each.rows] == [token.id for token in shard.tokens]
        assert each.cost.sequences == len(shard.tokens) * stage.probes_per_token
        assert each.cost.seconds > 0


def a_stage(encoder):
    settings = replace(planted.SMALL, insertion=Insertion.IDS)
    plan = make_plan(encoder, settings, planted.small_corpus(), ignore_progress)
    return validation_stage(encoder, settings, plan), categorize(encoder.tokenizer).available


def test_an_encoder_s_error_arrives_as_it_was_raised_and_the_engine_goes_on(engine, encoder):
    stage, tokens = a_stage(encoder)
    stranger = Shard(1, (Token(10**6, "stranger"),))
    with pytest.raises(
        EncodingError, match="has token id 1000000, but the model embeds only ids below"
    ) as caught:
        list(engine.compute(TokenWork(stage), [stranger]))
    assert type(caught.value) is EncodingError
    assert "\n" not in str(caught.value)
    (found,) = engine.compute(TokenWork(stage), [Shard(0, tuple(tokens[:2]))])
    assert len(found.rows) == 2


def test_an_engine_of_another_model_is_refused(engine, bert_folder, tmp_path):
    other = load_encoder(bert_folder, device="cpu")
    with pytest.raises(InputError, match="made for another model"):
        detect_std(other, tmp_path / "run", engine=engine)


def test_an_unknown_engine_is_refused(encoder, tmp_path):
    with pytest.raises(InputError, match="'dask' is unknown: use local, ray"):
        detect_std(encoder, tmp_path, engine="dask")


# Ray clusters: unreachable addresses, and division among workers. No Ray is started.


def test_what_ray_cannot_do_is_refused_before_anything_starts(encoder, bert_folder, tmp_path):
    made = load_encoder(tiny.SentenceTransformer(str(bert_folder), device="cpu"))
    with pytest.raises(InputError, match="made from a model object, which Ray workers cannot load"):
        engines.detect_std(made, tmp_path / "run", engine="ray")
    with pytest.raises(InputError, match="the number of workers is 0"):
        engines.detect_std(encoder, tmp_path / "run", engine=RayCluster(workers=0))


@pytest.mark.parametrize("from_environment", [False, True])
def test_an_address_that_nobody_answers_at_is_one_line_that_names_it(
    encoder, tmp_path, monkeypatch, from_environment
):
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
    if from_environment:
        monkeypatch.setenv("RAY_ADDRESS", address)
    cluster = RayCluster(None if from_environment else address)
    with pytest.raises(RunError, match=f"nothing answers at the Ray address '{address}'") as caught:
        engines.detect_std(encoder, tmp_path / "run", engine=cluster)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["", "somewhere", "host:", ":6379", "host:port", "ray://127.0.0.1:10001", "http://host:6379"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InputError, match="is not a Ray address"), connected(address):
        pass


NODES = st.lists(st.builds(Node, st.integers(0, 64), st.integers(0, 8)), min_size=1, max_size=6)


@given(NODES, st.none() | st.integers(1, 40))
def test_workers_fit_on_the_nodes_and_no_larger_ones_would(nodes, wanted):
    try:
        share = divide(nodes, "cpu", wanted)
    except InputError:
        assert sum(node.cpus for node in nodes) < (wanted or 1)
        return
    assert share.workers == wanted or wanted is None
    assert share.gpus == 0

    def places(cores):
        return sum(node.cpus // cores for node in nodes)

    assert places(share.cores) >= share.workers > places(share.cores + 1)


def test_on_gpus_a_worker_has_one_each():
    nodes = [Node(8, 4), Node(2, 0), Node(16, 2)]
    assert divide(nodes, "cuda:0", None) == Share(6, 1, 1)
    assert divide(nodes, "cuda", 3) == Share(3, 1, 1)


@pytest.mark.parametrize(
    ("device", "workers", "saying"),
    [
        ("cuda:0", 7, "the cluster has 6 GPUs, the number of workers is 7"),
        ("cpu", 27, "the cluster has 26 CPU cores, the number of workers is 27"),
        ("mps", None, "not on mps"),
    ],
)
def test_more_than_a_cluster_has_is_refused(device, workers, saying):
    with pytest.raises(InputError, match=saying):
        divide([Node(8, 4), Node(2, 0), Node(16, 2)], device, workers)
