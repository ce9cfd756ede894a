"""Failures specific to Ray: workers that die, wrong models, processes left behind."""

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

import engines
import planted
import tiny
from interrupted import assert_same_run
from naming import naming, says
from stickytoken import load_encoder
from stickytoken.errors import InputError, RunError
from stickytoken.insertion import Token
from stickytoken.measurement import ray_engine as module
from stickytoken.measurement.engine import Shard
from stickytoken.measurement.ray_engine import RayCluster, ShardWorker, connected, ray_engine
from stickytoken.measurement.stages import TokenWork

pytestmark = pytest.mark.slow

SHARD_PROBES = 4 * planted.SHARD_PROBES


@pytest.fixture(scope="module")
def running_ray():
    """A Ray instance started by the user with three cores, so that two workers leave one free."""
    import ray

    with engines.local_ray(cpus=3):
        # Tests are no package that workers could import.
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        yield ray
        ray.cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture(scope="module")
def pair_of_workers(running_ray, encoder):
    with ray_engine(encoder, workers=2) as opened:
        yield opened
    assert running_ray.is_initialized()  # it is the user's


def test_a_worker_that_is_killed_in_the_middle_is_replaced_and_changes_no_byte(
    pair_of_workers, encoder, tmp_path, caplog
):
    killed = []

    def kill_one(step):
        if step.stage == "texts" and step.computed and not killed:
            killed.append(pair_of_workers.reports[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    plain = engines.detect_std(encoder, tmp_path / "plain", shard_probes=SHARD_PROBES)
    with caplog.at_level(logging.WARNING):
        engines.detect_std(
            encoder, tmp_path / "run", engine=pair_of_workers, progress=kill_one, shard_probes=SHARD_PROBES
        )
    assert len(killed) == 1
    messages = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert len(messages) == 1
    assert says(messages[0], "worker", "ActorDiedError")
    assert_same_run(tmp_path / "run", plain.path)


@dataclass(frozen=True)
class DeadlyStage:
    """A stage that kills the process at one token, as if out of memory."""

    deadly: int
    name: str = "deadly"
    probes_per_token: int = 1

    def probes(self, token):
        return ["the river"]

    def measure(self, tokens, vectors):
        if self.deadly in {token.id for token in tokens}:
            os.kill(os.getpid(), signal.SIGKILL)
        return [{"length": float((vector**2).sum())} for vector in vectors]


def test_a_shard_that_ends_every_worker_is_an_error_that_names_it(pair_of_workers, monkeypatch):
    monkeypatch.setattr(module, "_ATTEMPTS", 2)
    shards = [Shard(index, (Token(index, "x"),)) for index in range(8)]
    computed = []
    with pytest.raises(RunError, match=naming("shard 3", "deadly", 2, "ActorDiedError")):
        computed.extend(
            result.shard.index for result in pair_of_workers.compute(TokenWork(DeadlyStage(3)), shards)
        )
    assert 3 not in computed
    # The other workers continue, and the dead one is replaced.
    rest = pair_of_workers.compute(TokenWork(DeadlyStage(-1)), shards)
    assert sorted(result.shard.index for result in rest) == list(range(8))


@dataclass(frozen=True)
class DefectiveStage(DeadlyStage):
    def measure(self, tokens, vectors):
        raise ZeroDivisionError("a defect")


def test_a_defect_in_a_worker_keeps_its_traceback(pair_of_workers):
    with pytest.raises(ZeroDivisionError, match="a defect") as caught:
        list(pair_of_workers.compute(TokenWork(DefectiveStage(0)), [Shard(0, (Token(0, "x"),))]))
    assert "in measure" in str(caught.value)


@pytest.fixture
def model_copy(bert_folder, tmp_path):
    return shutil.copytree(bert_folder, tmp_path / "model")


def test_a_worker_with_another_version_of_the_model_is_refused(running_ray, model_copy, tmp_path):
    encoder = load_encoder(model_copy, device="cpu")
    encoder.identify()
    other = tiny.bert_backbone(tmp_path / "other", seed=1)
    tiny.sentence_transformer(other, normalize=True).save(str(model_copy))
    with pytest.raises(RunError, match=naming("weights")):
        # Of three, one finds a core that is free.
        engines.detect_std(encoder, tmp_path / "run", engine=RayCluster(workers=3))
    assert not planted.shards_of(tmp_path / "run")


def test_a_worker_without_the_model_says_where_and_why(model_copy):
    spec = load_encoder(model_copy, device="cpu").spec
    shutil.rmtree(model_copy)
    with pytest.raises(RunError) as caught:
        ShardWorker(spec, "cpu", 1).load()
    assert says(str(caught.value), "worker", socket.gethostname())
    assert repr(str(model_copy)) in str(caught.value)


@pytest.mark.usefixtures("running_ray")
def test_an_address_beside_a_ray_that_is_there_is_refused():
    with pytest.raises(InputError, match="already connected"), connected("127.0.0.1:6379"):
        pass


COMMAND = (
    "import functools, stickytoken.detection as package;"
    "package.detect = functools.partial(package.detect, shard_probes=19);"
    "from stickytoken.cli.main import main; main()"
)


def test_ctrl_c_ends_the_command_its_workers_and_its_ray_and_the_run_continues_without(
    encoder, bert_folder, sentence_file, tmp_path
):
    """The signal goes to all processes of the terminal, like a real Ctrl-C."""
    folder = tmp_path / "run"
    arguments = ["detect", str(bert_folder), "--sentences", str(sentence_file), *planted.SMALL_OPTIONS]
    ray_options = ["--set", "engine=ray", "--set", "workers=1", "--out", str(folder)]
    process = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments, *ray_options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"},
    )
    while process.poll() is None and len(list((folder / "shards").glob("*.parquet"))) < 3:
        time.sleep(0.001)
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate()
    assert (process.returncode, stdout) == (130, "")
    assert planted.lines_of(stderr)[-1].startswith("interrupted:")
    assert "Traceback" not in stderr
    assert not list(folder.rglob("*.tmp"))
    assert 3 <= len(planted.shards_of(folder)) < 114
    listed = subprocess.run(["ps", "-eo", "pid=,sess="], capture_output=True, text=True, check=True).stdout
    remaining = [tuple(map(int, line.split())) for line in listed.splitlines()]
    assert [pid for pid, session in remaining if session == process.pid != pid] == []
    result = planted.command(*arguments, "--out", folder)
    assert result.exit_code == 0, result.stderr
