"""Ray clusters: unreachable addresses, and division among workers. No Ray is started."""

import os
import socket
from types import SimpleNamespace

import pytest
from hypothesis import given, strategies as st

import engines
import tiny
from naming import naming
from stickytoken import load_encoder
from stickytoken.errors import InputError, RunError
from stickytoken.measurement.ray_engine import Node, RayCluster, Share, _connect, connected, divide


def test_what_ray_cannot_do_is_refused_before_anything_starts(encoder, bert_folder, tmp_path):
    plain_encoder = load_encoder(tiny.SentenceTransformer(str(bert_folder), device="cpu"))
    with pytest.raises(InputError, match="object"):
        engines.detect_std(plain_encoder, tmp_path / "run", engine="ray")
    with pytest.raises(InputError, match=naming("workers", 0)):
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
        with pytest.raises(RunError, match=naming(repr(address))) as caught:
            engines.detect_std(encoder, tmp_path / "run", engine=cluster)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["", "somewhere", "host:", ":6379", "host:port", "ray://127.0.0.1:10001", "http://host:6379"]
)
def test_what_is_no_address_is_refused(address):
    with pytest.raises(InputError, match=naming(repr(address))), connected(address):
        pass


@pytest.mark.parametrize(("address", "seconds"), [(None, None), ("127.0.0.1:6379", "1")])
def test_only_a_cluster_elsewhere_must_answer_within_a_second(monkeypatch, address, seconds):
    variable = "RAY_gcs_server_port_wait_time_s"
    monkeypatch.delenv(variable, raising=False)
    seen = []
    ray = SimpleNamespace(
        init=lambda **_: seen.append(os.environ.get(variable)),
        exceptions=SimpleNamespace(RayError=RuntimeError),
    )
    _connect(ray, address)
    assert (seen, os.environ.get(variable)) == ([seconds], None)


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
    assert divide([Node(2, 8), Node(0, 4)], "cuda", None) == Share(2, 1, 1)  # each needs a core, too


@pytest.mark.parametrize(
    ("device", "workers", "saying"),
    [
        ("cuda:0", 7, naming(6, 7)),
        ("cpu", 27, naming(26, 27)),
        ("mps", None, naming("mps")),
    ],
)
def test_more_than_a_cluster_has_is_refused(device, workers, saying):
    with pytest.raises(InputError, match=saying):
        divide([Node(8, 4), Node(2, 0), Node(16, 2)], device, workers)
