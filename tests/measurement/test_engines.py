"""One test suite for all engines: the local one and real Ray."""

from dataclasses import replace

import pytest

import engines
import planted
import profiled
from interrupted import assert_same_run
from naming import naming
from stickytoken import load_encoder, open_run
from stickytoken.errors import EncodingError, InputError
from stickytoken.insertion import Insertion, Token
from stickytoken.measurement.engine import LocalEngine, Shard, ignore_progress
from stickytoken.measurement.ray_engine import ray_engine
from stickytoken.measurement.stages import TokenWork
from stickytoken.methods.base import Job, Scope
from stickytoken.methods.runner import Runner
from stickytoken.methods.std.plan import make_plan
from stickytoken.methods.std.validation import validation_stage
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
    return {name: SETTINGS_OF_METHOD[name](encoder, root / name).path for name in SETTINGS_OF_METHOD}


def detect_std(encoder, folder, **options):
    return engines.detect_std(encoder, folder, shard_probes=SHARD_PROBES, **options)


def detect_profile(encoder, folder, **options):
    return profiled.detect_profile(encoder, folder, shard_probes=SHARD_PROBES, **options)


SETTINGS_OF_METHOD = {"std": detect_std, "profile": detect_profile}


@pytest.mark.parametrize("method", SETTINGS_OF_METHOD)
def test_a_run_has_the_bytes_of_one_that_a_single_process_computed(engine, encoder, whole, tmp_path, method):
    SETTINGS_OF_METHOD[method](encoder, tmp_path / "run", engine=engine)
    assert len(planted.shards_of(tmp_path / "run")) > 10
    assert_same_run(tmp_path / "run", whole[method])


def test_a_run_that_was_cut_off_is_continued_by_the_other_engine(engine, encoder, whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(engines.InterruptionError):
        detect_profile(
            encoder, folder, engine=engine, progress=engines.interrupted_after("confirm-1", done=15)
        )
    before = planted.shards_of(folder)
    assert any("/confirm-" in name for name in before)
    detect_profile(encoder, folder, engine="local")
    after = planted.shards_of(folder)
    assert {name: after[name] for name in before} == before
    assert_same_run(folder, whole["profile"])


def test_a_run_that_is_continued_with_larger_shards_counts_only_its_own_texts(encoder, whole, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(engines.InterruptionError):
        detect_profile(encoder, folder, progress=engines.interrupted_after("confirm-1", done=15))
    resumed = profiled.detect_profile(encoder, folder)
    assert resumed.result.sequences == open_run(whole["profile"]).result.sequences
    assert len(planted.shards_of(folder)) < len(planted.shards_of(whole["profile"]))


def test_every_shard_comes_back_once_with_its_rows(engine, encoder):
    stage, tokens = a_stage(encoder)
    # Shards of very different sizes do not finish in the order in which they start.
    shards = [
        Shard(k, tuple(tokens[start:stop])) for k, (start, stop) in enumerate([(0, 40), (40, 41), (41, 60)])
    ]
    results = {result.shard.index: result for result in engine.compute(TokenWork(stage), shards)}
    assert sorted(results) == [0, 1, 2]
    for shard in shards:
        result = results[shard.index]
        assert [row["token_id"] for row in result.rows] == [token.id for token in shard.items]
        assert result.cost.sequences == len(shard.items) * stage.probes_per_token
        assert result.cost.seconds > 0


def a_stage(encoder):
    settings = replace(planted.SMALL, insertion=Insertion.IDS)
    vocabulary = categorize(encoder.tokenizer)
    job = Job(encoder, settings, planted.small_corpus(), vocabulary, [], scope=Scope.WHOLE)
    plan = make_plan(job, Runner.in_memory(encoder, ignore_progress))
    return validation_stage(encoder, settings, plan), vocabulary.available


def test_an_encoder_s_error_arrives_as_it_was_raised_and_the_engine_goes_on(engine, encoder):
    stage, tokens = a_stage(encoder)
    stranger = Shard(1, (Token(10**6, "stranger"),))
    with pytest.raises(EncodingError, match=naming(10**6)) as caught:
        list(engine.compute(TokenWork(stage), [stranger]))
    assert type(caught.value) is EncodingError
    assert "\n" not in str(caught.value)
    (result,) = engine.compute(TokenWork(stage), [Shard(0, tuple(tokens[:2]))])
    assert len(result.rows) == 2


def test_an_engine_of_another_model_is_refused(engine, bert_folder, tmp_path):
    other = load_encoder(bert_folder, device="cpu")
    with pytest.raises(InputError, match="another model"):
        detect_std(other, tmp_path / "run", engine=engine)


def test_an_unknown_engine_is_refused(encoder, tmp_path):
    with pytest.raises(InputError, match=naming("'dask'", "local", "ray")):
        detect_std(encoder, tmp_path, engine="dask")
