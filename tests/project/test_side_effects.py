"""What the package must leave alone: the settings that a whole process shares."""

import csv
import threading

import pytest
import torch

from planted import program
from stickytoken.data.documents import Meter, NamedColumns, open_documents
from stickytoken.encoders.compute.batches import compute_all
from stickytoken.machine import SharedSetting

COMMON = """
import csv, locale, logging, os, signal, warnings, torch

def state():
    return {
        "csv": csv.field_size_limit(),
        "locale": locale.setlocale(locale.LC_ALL),
        "filters": repr(warnings.filters),
        "threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "precision": torch.get_float32_matmul_precision(),
        "seed": torch.initial_seed(),
        "environment": dict(os.environ),
        "interrupts": repr(signal.getsignal(signal.SIGINT)),
        "log level": logging.getLogger().level,
        "default dtype": repr(torch.get_default_dtype()),
    }

import sentence_transformers, sklearn, scipy.stats, polars
before = state()
"""


@pytest.mark.slow
def test_encoding_leaves_the_process_as_it_was(bert_folder):
    code = f"""{COMMON}
import stickytoken
encoder = stickytoken.load_encoder({str(bert_folder)!r}, device="cpu")
encoder.encode(["the river", "a stone"])
after = state()
changed = [name for name in before if before[name] != after[name]]
assert not changed, [(name, before[name], after[name]) for name in changed]
print("unchanged")
"""
    done = program(code)
    assert done.stdout.strip().endswith("unchanged"), done.stderr


def rows(path):
    return open_documents(path, NamedColumns()).read(Meter())


def test_interleaved_readers_of_long_fields_leave_the_limit_of_the_csv_module(tmp_path):
    text = "word " * 100_000
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f'id,text\n1,"{text}"\n2,"{text}"\n', encoding="utf-8")
    limit = csv.field_size_limit()
    first = rows(tmp_path / "a.csv")
    second = rows(tmp_path / "b.csv")
    assert next(first).text == text
    assert next(second).text == text
    assert csv.field_size_limit() == limit
    first.close()
    assert [document.text for document in second] == [text]
    assert csv.field_size_limit() == limit


def test_threads_of_torch_are_put_back_by_the_last_of_two_computations():
    before = torch.get_num_threads()
    inside = threading.Event()
    leave = threading.Event()

    def slow(item):
        inside.set()
        leave.wait(30)
        return item

    other = threading.Thread(target=compute_all, args=(slow, [1, 2], 2))
    other.start()
    inside.wait(30)
    assert compute_all(lambda item: torch.get_num_threads(), [1, 2], 2) == [1, 1]
    leave.set()
    other.join()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_shared_setting_is_put_back_in_any_order(order):
    values = ["user's"]
    setting = SharedSetting(lambda: values[-1], values.append)
    users = [setting.at("ours"), setting.at("ours")]
    for user in users:
        user.__enter__()
    assert setting.original == "user's"
    users[order[0]].__exit__(None, None, None)
    assert values[-1] == "ours"
    users[order[1]].__exit__(None, None, None)
    assert values[-1] == "user's"
