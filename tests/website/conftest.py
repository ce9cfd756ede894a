"""The built documentation, once for all tests of it; and a folder in which the how-to pages are executed."""

from urllib.parse import urlsplit

import pytest

import planted
import stickytoken
import workshop
from embedding_server import Behaviour, EmbeddingServer

RUN_FOLDER = "runs/all-MiniLM-L6-v2-profile-0123456789ab"
# Names that pages use, beside those of the models and files of the workshop: all are its model and its run.
MODELS = ("MODEL", "my_model", "my-tokenizer")
RUNS = ("RUN", "my-run", RUN_FOLDER)
OWN_NAMES = {
    "explain.md": {"runs": ("all-MiniLM-L6-v2",)},
    "documents.md": {"runs": ("minilm",)},
    "ci.md": {"runs": ("before", "baseline", "my_model-profile-0123456789ab")},
    "publish.md": {"runs": ("all-MiniLM-L6-v2",)},
    "endpoints.md": {"models": ("FOLDER", "models/multilingual-e5-small-4bit")},
}


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """The workshop, with a run of its model as `detect` names it; and the folder of that run."""
    folder = tmp_path_factory.mktemp("made") / "workshop"
    folder.mkdir()
    workshop.build(folder)
    done = planted.program(planted.COMMAND_LINE, "detect", "all-MiniLM-L6-v2", folder=folder)
    assert done.returncode == 0, done.stderr
    (run,) = (folder / "runs").iterdir()
    assert stickytoken.open_run(run).sticky["token"][0] == workshop.STICKY
    return folder, f"runs/{run.name}"


@pytest.fixture(scope="session")
def port(made):
    encoder = stickytoken.load_encoder(made[0] / "all-MiniLM-L6-v2", device="cpu")
    server = EmbeddingServer(encoder, Behaviour(name="NAME", max_tokens=encoder.max_length - 2))
    with server.running() as url:
        yield urlsplit(url).port


@pytest.fixture
def place(made, request, tmp_path, monkeypatch):
    folder, run = made
    own_names = OWN_NAMES.get(request.node.callspec.params["page"], {})
    names = dict.fromkeys((*MODELS, *own_names.get("models", ())), "all-MiniLM-L6-v2")
    names |= dict.fromkeys((*RUNS, *(f"runs/{name}" for name in own_names.get("runs", ()))), run)
    workshop.copied(folder, tmp_path / "place", names)
    monkeypatch.chdir(tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    pytest.importorskip("zensical", reason="zensical is not installed")
    import build

    folder = tmp_path_factory.mktemp("site")
    assert build.build(folder) == 0
    return folder / "docs"
