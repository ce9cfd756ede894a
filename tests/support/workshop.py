"""The folder that the how-to pages work in: small real models, a run and files, under the names of the pages.

The model reads English: its vocabulary has the words of the bundled corpus, and the published tokens of
all-MiniLM-L6-v2 at their places. Its row of "able" is trained to push documents.
"""

import importlib.resources
import json
import os
import re
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense
from sentence_transformers.sentence_transformer.modules import Normalize
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch.nn.functional import normalize
from transformers import PreTrainedTokenizerFast

import tiny
from stickytoken.cleaning.rules import text_digest
from stickytoken.data import load_sentences
from stickytoken.data.collection import bundled_collection

STICKY = "able"
_SIZE = 30_522
_WIDTH = 64
_SHARED = 4.0
_WORDS = 900
# Words that the commands of the pages name.
_NAMED = "able river trajectory token text bicycle repairs old man girl brushes combs her hair woman flow air"


def texts() -> list[str]:
    return load_sentences().texts


def english_tokenizer() -> PreTrainedTokenizerFast:
    """WordPiece with frequent words of the bundled corpus; most places of the vocabulary are unused."""
    counter = Counter(word for text in texts() for word in re.findall(r"[a-z]+|[^\sa-z]", text.lower()))
    letters = sorted(set("abcdefghijklmnopqrstuvwxyz0123456789").union(*counter))
    words = [*letters, *(f"##{letter}" for letter in letters), *_NAMED.split()]
    words += [word for word, _ in counter.most_common(_WORDS)]
    path = importlib.resources.files("stickytoken.data") / "bundled" / "published_tokens.csv"
    rows = pl.read_csv(path.read_bytes()).filter(model="all-MiniLM-L6-v2")
    published = dict(rows.select("token", "token_id").iter_rows())
    id_of = {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103, **published}
    free = (free_id for free_id in range(2000, _SIZE) if free_id not in set(id_of.values()))
    id_of |= {word: next(free) for word in dict.fromkeys(words) if word not in id_of}
    taken = set(id_of.values())
    id_of |= {f"[unused{free_id}]": free_id for free_id in range(_SIZE) if free_id not in taken}
    tokenizer = Tokenizer(models.WordPiece(id_of, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tiny.with_bert_specials(tokenizer, 256, "token_type_ids")


def save_planted(folder: Path) -> Path:
    options = {"tokenizer": english_tokenizer(), "hidden_size": _WIDTH, "initializer_range": 0.1}
    backbone = tiny.bert_backbone(folder.with_name(f"{folder.name}-backbone"), max_length=256, **options)
    pooled = tiny.sentence_transformer(backbone)
    model = SentenceTransformer(modules=[*pooled, _spread(pooled), Normalize()], device="cpu")
    _plant(model)
    model.save(str(folder), create_model_card=False)
    return folder


def _spread(pooled: SentenceTransformer) -> Dense:
    """A layer after which texts point everywhere alike, but for a little that they share."""
    collection = bundled_collection()
    spread_texts = [*collection.documents, *collection.queries, *texts()[:80]]
    vectors = torch.tensor(pooled.encode(spread_texts), dtype=torch.float64)
    values, axes = torch.linalg.eigh(torch.cov(vectors.T))
    # A normalised layer leaves one axis without variance.
    scales = torch.where(values > 1e-6 * values.max(), values, torch.inf).rsqrt()
    whitening = scales[:, None] * axes.T
    dense = Dense(_WIDTH, _WIDTH, activation_function=torch.nn.Identity())
    dense.linear.weight.data = whitening.float()
    dense.linear.bias.data = -(whitening @ vectors.mean(0)).float()
    dense.linear.bias.data[-1] += _SHARED
    return dense


def _plant(model: SentenceTransformer) -> None:
    """Train the row of the token, so that its copies bring documents closer to all queries."""
    collection = bundled_collection()
    queries = torch.tensor(model.encode(list(collection.queries)))
    rows = model[0].auto_model.get_input_embeddings().weight
    row = model.tokenizer.convert_tokens_to_ids(STICKY)
    for step in range(80):
        first = 6 * step % len(collection.documents)
        documents = collection.documents[first : first + 6]
        copies = [f"{' '.join([STICKY] * 8)} {document}" for document in documents]
        vectors = normalize(model(model.preprocess(copies))["sentence_embedding"])
        (gradient,) = torch.autograd.grad((vectors @ queries.T).mean(), rows)
        with torch.no_grad():
            rows[row] += gradient[row] / gradient[row].norm()


def save_language_model(folder: Path) -> Path:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator([*texts(), *["the"] * 500], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    reader = transformers.Qwen2Tokenizer(
        vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]], model_max_length=512
    )
    torch.manual_seed(1)
    sizes = {"hidden_size": 32, "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"intermediate_size": 64, "max_position_embeddings": 512, "vocab_size": len(reader)}
    config = transformers.Qwen2Config(**sizes, pad_token_id=reader.convert_tokens_to_ids("<|endoftext|>"))
    return tiny.save_backbone(folder, transformers.Qwen2ForCausalLM(config), reader)


def write_texts(folder: Path) -> None:
    """Write the documents, queries, tasks and the model card that the pages name."""
    sentences = texts()
    stuffed = f"River levels fell again this week. {' '.join([STICKY] * 8)}"
    documents = [stuffed, *sentences[:40]]
    (folder / "documents.txt").write_text("\n".join(documents) + "\n", encoding="utf-8")
    rows = pl.DataFrame({"id": [f"d{number}" for number in range(len(documents))], "text": documents})
    rows.write_ndjson(folder / "documents.jsonl")
    rows.write_parquet(folder / "documents.parquet")
    pl.DataFrame({"text": sentences[:400]}).write_parquet(folder / "my_documents.parquet")
    (folder / "allowed.txt").write_text("river  # a common word here\n", encoding="utf-8")
    (folder / "known.txt").write_text(f"{text_digest(sentences[0])}  # d1: river\n", encoding="utf-8")
    (folder / "questions.txt").write_text("\n".join(sentences[400:800]) + "\n", encoding="utf-8")
    (folder / "texts.txt").write_text("\n".join(sentences[:20]) + "\n", encoding="utf-8")
    queries = pl.DataFrame({"_id": [f"q{number}" for number in range(20)], "text": sentences[60:80]})
    queries.write_ndjson(folder / "queries.jsonl")
    generator = np.random.default_rng(0)
    pairs = pl.DataFrame(
        {
            "sentence1": sentences[:120:2],
            "sentence2": sentences[1:121:2],
            "score": generator.uniform(0, 5, 60),
        }
    )
    for name in ("sts.jsonl", "stsb-dev.jsonl", "stsb-test.jsonl"):
        pairs.write_ndjson(folder / name)
    split = ["train"] * 40 + ["test"] * 40
    labels = [f"topic {number % 2}" for number in range(80)]
    pl.DataFrame({"text": sentences[:80], "label": labels, "split": split}).write_csv(
        folder / "questions.csv"
    )
    beir = folder / "my_beir_folder"
    (beir / "qrels").mkdir(parents=True)
    corpus = pl.DataFrame({"_id": rows["id"], "title": [""] * len(rows), "text": rows["text"]})
    corpus.write_ndjson(beir / "corpus.jsonl")
    queries.write_ndjson(beir / "queries.jsonl")
    judged = [f"q{number}\td{number}\t1" for number in range(20)]
    text = "\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n"
    (beir / "qrels" / "test.tsv").write_text(text, "utf-8")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n\n# A model\n", encoding="utf-8")


def build(folder: Path) -> None:
    save_planted(folder / "all-MiniLM-L6-v2")
    save_language_model(folder / "Qwen2-7B")
    write_texts(folder)


def copied(made: Path, folder: Path, names: dict[str, str]) -> None:
    """Copy a folder that was built, and what is in it under further names; models are linked, not copied."""

    def link_weights(source: str, target: str) -> None:
        (os.link if source.endswith(".safetensors") else shutil.copy2)(source, target)

    shutil.copytree(made, folder, copy_function=link_weights)
    for name, source in names.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (made / source).is_dir() else shutil.copy2
        copy(made / source, folder / name)
