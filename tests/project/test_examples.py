"""Every public name has an example, and the examples print what they say."""

import ast
import doctest
import importlib
import json
import shutil
from pathlib import Path

import pytest

import stickytoken
import tiny_decoders

SOURCE = Path(stickytoken.__file__).parent
# `base.Method` describes the functions that both methods have. Constants have no docstring.
METHODS = ("methods.profile", "methods.std")
CONSTANTS = {"JsonValue", "PAPER_DATASETS", "__version__"}
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PAIRS = [
    ("a river", "a stream", 4),
    ("a boat", "a ship", 5),
    ("the cat sleeps", "stocks fell", 0),
    ("a quiet garden", "a silent garden", 4),
    ("the train is late", "the moon is full", 1),
    ("bread and butter", "toast with butter", 3),
]


def public_names():
    """Yield each module that has an `__all__`, without importing it, and the names in it."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                parts = path.relative_to(SOURCE).with_suffix("").parts
                module = ".".join(part for part in parts if part != "__init__")
                if module not in METHODS:
                    yield module, sorted(set(ast.literal_eval(node.value)) - CONSTANTS)


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """What the examples use: the packaged model, its run, some documents, and a small language model."""
    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, run in (("run", "all-MiniLM-L6-v2"), ("tampered", "tampered")):
            shutil.copytree(SOURCE / "demo" / "example" / run, name)
        documents = [
            "A plain text about rivers and boats.",
            "doorway doorway doorway doorway doorway doorway leads nowhere",
            "a text with [SEP] inside",
            *(
                f"Document number {number} tells a story about topic {7 * number % 13} and its heroes."
                for number in range(30)
            ),
        ]
        rows = [json.dumps({"id": str(number), "text": text}) for number, text in enumerate(documents)]
        Path("documents.jsonl").write_text("\n".join(rows) + "\n")
        rows = [
            json.dumps(dict(zip(("sentence1", "sentence2", "score"), pair, strict=True))) for pair in PAIRS
        ]
        Path("sts.jsonl").write_text("\n".join(rows) + "\n")
        Path("pairs.csv").write_text("sentence1,sentence2,similarity\na river,a stream,0.8\n")
        yield {
            "stickytoken": stickytoken,
            "model": stickytoken.load_encoder("all-MiniLM-L6-v2", device="cpu"),
            "run": stickytoken.open_run("run"),
            "documents": documents,
            "decoder": stickytoken.load_encoder(
                tiny_decoders.saved_decoder(Path("decoder")), device="cpu", prompt="prompteol"
            ),
        }


@pytest.mark.slow
@pytest.mark.parametrize(("module", "public"), [*public_names()])
def test_every_public_name_has_an_example_that_runs(names, module, public):
    package = importlib.import_module(f"stickytoken.{module}".rstrip("."))
    printed = []
    for name in public:
        finder = doctest.DocTestFinder(recurse=False)
        (test,) = finder.find(getattr(package, name), name, module=False, globs=dict(names))
        assert test.examples, f"{module}: {name} has no example"
        doctest.DocTestRunner(verbose=False, optionflags=OPTIONS).run(test, out=printed.append)
    assert not printed, "".join(printed)
