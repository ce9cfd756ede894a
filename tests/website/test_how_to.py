"""The how-to pages, executed: every command and every block of Python, in order, in one folder for each page.

The names of the pages are real there: `all-MiniLM-L6-v2`, `MODEL`, `./Qwen2-7B` and `RUN` are tiny models and
a run of one of them (tests/support/workshop.py). Commands run in bash as they are written. What cannot be
executed here is in NOT_EXECUTED, with the reason. Outputs of the real models are compared in test_readme.py.
"""

import json
import re
import shutil
from types import SimpleNamespace

import pytest
from transformers import AutoModel, AutoTokenizer

import how_to
import stickytoken
import workshop
from naming import naming

PAGES = how_to.how_to_pages()
DESCRIBED = [
    " ".join(shown_json.split())
    for page in PAGES
    for shown_json in re.findall(r'`(\{"[^`]*)`', how_to.text_of(page))
]
# Commands of the overview that a page of their own has too are executed there.
ON_OTHER_PAGES = [
    step for page in PAGES if page != "usage.md" for step in how_to.steps_of(how_to.text_of(page))
]
SECONDS = "takes seconds that this test does not have"
NEED_A_SERVER = (
    "stickytoken detect http://localhost:8451", "stickytoken detect http://localhost:8441", "e5/bin/",
    "STICKYTOKEN_API_KEY=", "PYTHONPATH=infinity", "python3.12 -m venv", "gateway/bin/", "export LITELLM",
    "cat > litellm.yaml",
)  # fmt: skip
ADAPTERS = (
    "import stickytoken\nfrom sentence_transformers import SentenceTransformer\n\nguarded",
    *("from datasets", "from llama_index", "from langchain", "from haystack"),
)
# What a step begins with, and why it is not executed.
NOT_EXECUTED = {
    "pip install": "installs packages; `make test-dist` installs every extra",
    "uv pip install": "installs packages, from an index that the tests do not reach",
    "python benchmarks/": "a benchmark, of minutes to hours",
    "stickytoken detect MODEL --set engine=ray": "starts a cluster; tests/measurement does, in half a minute",
    "stickytoken evaluate ./Llama-2-7b": "tasks of the hub, and a model of 7 billion weights",
    "stickytoken published --add STD_RUN": "a run of std over a whole vocabulary; test_published.py has one",
    "export OPENAI_API_KEY": "a key of a service",
    "stickytoken detect openai:": "a service on the internet",
    "from stickytoken import EndpointOptions": "a service on the internet; the tests of endpoints have one",
    "import os\n\nimport httpx": "a service on the internet; executed in test_endpoint_docs.py",
    **dict.fromkeys(NEED_A_SERVER, "a server with packages of its own, or a command that needs one"),
    **dict.fromkeys(ADAPTERS, "an adapter; executed in tests/adapters/test_clean_page.py"),
    "import mteb": "a task of the hub; executed in tests/adapters/test_mteb.py",
    "stickytoken.detect(encoder, settings=stickytoken.StdSettings())": "the paper's method takes minutes",
    "stickytoken.detect(encoder, sample=50": SECONDS + "; the line above it differs in one option",
    "stickytoken.detect(encoder, settings=stickytoken.ProfileSettings": SECONDS + "; as above",
    "stickytoken.detect(MyEncoder()": SECONDS + "; tests/encoders/test_own_encoders.py has it",
    "stickytoken audit": SECONDS + "; tests/audits has the command",
    "audit = stickytoken.": SECONDS + "; tests/audits has the same",
    "audit.words": "shows the former",
    "stickytoken repair runs/all-MiniLM-L6-v2-profile-0123456789ab --tokens": SECONDS + "; the line above it",
    "mended = stickytoken.repair": "takes half a minute, and the page of repairs has the same",
    "stickytoken repair RUN --out FOLDER": "takes half a minute, and the page of repairs has the same",
}
# Exit statuses other than 0: the model of the workshop has a sticky token, its documents have copies of it.
STATUSES = {
    "stickytoken check all-MiniLM-L6-v2": 10,
    "stickytoken check runs/my_model": 10,
    "stickytoken check my_model --fail-on serious --max 2": 10,  # it has three
    "stickytoken check my_model --documents": 10,
    "stickytoken check rules.json": 10,
}
# How the description of a JSON document (or of an entry of a list) begins, and a command that prints it.
DOCUMENTS = {
    '{"model", "vocab_size"': "stickytoken tokens all-MiniLM-L6-v2",
    '{"run", "method", "model", "headline", "available", "looked_at"': "stickytoken detect all-MiniLM-L6-v2",
    '{"run", "method", "model", "headline", "available", "scored"': (
        "stickytoken detect all-MiniLM-L6-v2 --method std --sample 20 "
        "--set sentence-count=40 --set pair-count=60 "
        "--set scoring-pairs=2 --set validation-pairs=6 --set report=false"
    ),
    '{"token_id", "token", "category", "verdict"': "stickytoken probe all-MiniLM-L6-v2 river",
    '{"token_id", "token", "category", "validation_rate"': (
        "stickytoken probe all-MiniLM-L6-v2 river --method std --set validation-pairs=6"
    ),
    '{"schema_version", "model", "pooling"': "stickytoken explain RUN able "
    "--set carriers=6 --set attribution=false",
    '{"model", "texts", "dimension"': "stickytoken embed MODEL --input texts.txt --out new.parquet",
    '{"model", "task", "kind"': "stickytoken evaluate all-MiniLM-L6-v2 --task sts.jsonl",
    '{"model", "task", "prompt"': "stickytoken tune ./Qwen2-7B --prompt prompteol --task stsb-dev.jsonl",
    '{"audit", "run"': "stickytoken audit RUN --documents my_documents.parquet "
    "--set stuffed=8 --set tokens=1",
    '{"documents", "changed"': "stickytoken clean RUN documents.txt",
    '{"scan", "run"': "stickytoken scan RUN documents.jsonl",
    '{"model", "run", "similarity"': 'stickytoken why MODEL "one text" "another text" --run RUN',
    '{"outcome", "model"': "stickytoken check RUN",
}
# What cannot be typed here as it is, because the ports may be in use.
REPLACED = {"localhost:8080": "localhost:{port}", "stickytoken demo": "stickytoken demo --port 0"}


def of(table, text):
    return next((entry for key, entry in table.items() if text.startswith(key)), None)


# One page in every run of the tests, all of them at night.
ON_EVERY_RUN = "ci.md"


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[] if page == ON_EVERY_RUN else pytest.mark.nightly) for page in PAGES]
)
def test_a_page_works_as_written(page, place, port):
    names = given()
    wrong = []
    for kind, text in how_to.steps_of(how_to.text_of(page)):
        if of(NOT_EXECUTED, text) is not None or (page == "usage.md" and (kind, text) in ON_OTHER_PAGES):
            continue
        if kind == "python":
            wrong += how_to.run_python(text, names, lambda text: of(NOT_EXECUTED, text) is not None)
        else:
            wrong += type_in(text, place, port)
    if page == "repair.md":
        (listing,) = re.findall(
            r"^```text\nrepaired/\n(.*?)^```", how_to.text_of(page), re.DOTALL | re.MULTILINE
        )
        files = set(re.findall(r"^  (\w+\.\w+) ", listing, re.MULTILINE))
        assert files <= {path.name for path in (place / "repaired").iterdir()}
    assert wrong == [], "\n".join(wrong)


def given():
    encoder = stickytoken.load_encoder("MODEL", device="cpu")
    return {
        "stickytoken": stickytoken,
        "encoder": encoder,
        "run": stickytoken.open_run("RUN"),
        "texts": workshop.texts()[:200],
        "text": "a text",
        "my_service": SimpleNamespace(embed=encoder.encode),
        "transformers_model": AutoModel.from_pretrained("Qwen2-7B"),
        "tokenizer": AutoTokenizer.from_pretrained("Qwen2-7B"),
    }


def type_in(line, place, port):
    for typed, instead in REPLACED.items():
        line = line.replace(typed, instead.format(port=port))
    if line.startswith("stickytoken demo"):
        how_to.interrupt_when("http://127.0.0.1:", line)
        return []
    done = how_to.run_line(line)
    if line.startswith("stickytoken detect") and (
        run_line := re.search(r"; run: (\S+)$", done.stdout, re.MULTILINE)
    ):
        shutil.rmtree(place / "RUN")
        shutil.copytree(place / run_line[1], place / "RUN")
    as_said = done.returncode == (of(STATUSES, line) or 0) and "Traceback" not in done.stderr
    return [] if as_said else [f"{line}\nstatus {done.returncode}\n{done.stdout}\n{done.stderr}"]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("page", ["usage.md"])
def test_json_documents_have_the_keys_that_the_pages_say(page, place):
    del page, place
    wrong = []
    for start, command in DOCUMENTS.items():
        (description,) = (text for text in DESCRIBED if text.startswith(start))
        done = how_to.run_line(f"{command} --format json")
        assert done.returncode in (0, 10), done.stderr
        document = json.loads(done.stdout)
        first = document[0] if isinstance(document, list) else document
        wrong += [f"{command}: {line}" for line in how_to.unlike(how_to.shape_of(description), first)]
    assert wrong == [], "\n".join(wrong)


def test_every_described_json_document_is_printed_by_a_command():
    # The web app prints one of the others, which tests/demo reads, and `evaluate` of several tasks another.
    others = [text for text in DESCRIBED if not text.startswith(tuple(DOCUMENTS))]
    assert {tuple(how_to.shape_of(text)) for text in others} == {
        ("url", "public_url"),
        ("model", "tasks", "mean"),
    }


def test_a_description_is_read_and_compared():
    shape = how_to.shape_of(
        '{"a", "b": {name: count}, "c": [{"d", "e": [...]}], "f": {"g"}, "h": {"i", ...}}'
    )
    document = {"a": 1, "b": {"x": 2}, "c": [{"d": 1, "k": 2}], "f": None, "h": {"z": 1}}
    assert list(how_to.unlike(shape, document)) == [
        ".c[].e is not there",
        ".c[].k is not documented",
        ".h.i is not there",
    ]


def test_nothing_is_left_out_that_no_page_has():
    texts = [text for page in PAGES for _, text in how_to.steps_of(how_to.text_of(page))]
    assert [key for key in NOT_EXECUTED if not any(key in text for text in texts)] == []
    assert [key for key in STATUSES if not any(text.startswith(key) for text in texts)] == []


def test_a_block_that_is_no_command_needs_a_language():
    with pytest.raises(ValueError, match=naming("repaired/")):
        how_to.command_lines("repaired/")
