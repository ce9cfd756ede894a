"""Fixtures that several test modules share."""

import os
from pathlib import Path

import pytest

# Nothing in the tests may reach a network, whatever the machine's settings are.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Tiny models gain nothing from threads, and lose much to threads that wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import tiny
from stickytoken.encoders import load_encoder

SHARED = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Published tables and real tokenizers; absent on a user's machine."""
    if not SHARED.is_dir():
        pytest.skip("the folder with published tables and real tokenizers is not beside the project")
    return SHARED


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory) -> Path:
    """A saved SentenceTransformer: tiny BERT, mean pooling, normalised."""
    backbone = tiny.bert_backbone(tmp_path_factory.mktemp("backbone"))
    folder = tmp_path_factory.mktemp("bert") / "tiny-bert"
    tiny.sentence_transformer(backbone, normalize=True).save(str(folder))
    return folder


@pytest.fixture(scope="session")
def encoder(bert_folder):
    """The tiny BERT as an encoder."""
    return load_encoder(bert_folder, device="cpu")


@pytest.fixture
def sentence_file(tmp_path) -> Path:
    """A text file with 60 sentences of words that the tiny tokenizer knows."""
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(tiny.sentences(60)) + "\n", encoding="utf-8")
    return path
