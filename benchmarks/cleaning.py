"""Documents with planted copies or optimised tokens: what is found, what cleaning changes, how fast.

python benchmarks/cleaning.py shares RUN --planted planted.json --corpus cranfield.txt --corpus trec.txt
python benchmarks/cleaning.py ranks RUN cranfield model     # ranks of planted documents after cleaning
python benchmarks/cleaning.py adversarial RUN cranfield     # optimised by gradient search
python benchmarks/cleaning.py scan RUN [RUN ...]            # recall and false alarms on Cranfield and TREC
python benchmarks/cleaning.py scan RUN --effect             # and predicted against measured effects
python benchmarks/cleaning.py scan RUN --documents 1000000  # and throughput and memory

RUN is a finished run of a model with planted rows; cranfield a retrieval data set in the layout of BEIR.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import typer
from numpy.typing import NDArray

from bench import (
    MINILM,
    RESULTS,
    SHARED,
    check,
    commands,
    finish,
    json_lines,
    plain_model,
    planted_rows,
    write_json,
)
from stickytoken import Run, load_encoder, open_run
from stickytoken.cleaning import Cleaner, CleaningRules, SpanKind, find_spans
from stickytoken.cleaning.rules import rules_of_run
from stickytoken.scanning.scan import scan_documents

Vectors = NDArray[np.floating[Any]]
RANKS_APART, TOP = 0.1, 10
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
PUNCTUATION = (", ", ". ", "! ", "; ", " - ", "/", "|", "_", "... ")
ACCENTS = "\u0301\u0300\u0336"

# A document, the copies, other words and a generator, made into a planted document.
Recipe = Callable[[str, Sequence[str], Sequence[str], random.Random], str]


def _spread(document: str, copies: Sequence[str], gaps: Sequence[int]) -> str:
    words = document.split()
    for gap, copy in sorted(zip(gaps, copies, strict=True), reverse=True):
        words.insert(gap, copy)
    return " ".join(words)


def _evenly(document: str, copies: Sequence[str]) -> str:
    length = len(document.split())
    return _spread(
        document, copies, [round((n + 1) * length / (len(copies) + 1)) for n in range(len(copies))]
    )


def _at_random(document: str, copies: Sequence[str], draw: random.Random) -> str:
    length = len(document.split())
    return _spread(document, copies, [draw.randint(0, length) for _ in copies])


def _between(copies: Sequence[str], others: Sequence[str]) -> str:
    """Put other words, over and over, behind the copies."""
    return " ".join(f"{copy} {others[number % len(others)]}" for number, copy in enumerate(copies))


def _cased(word: str, draw: random.Random) -> str:
    return "".join(draw.choice((each.upper(), each.lower())) for each in word)


def _wide(word: str) -> str:
    return "".join(chr(ord(each) + 0xFEE0) if "!" <= each <= "~" else each for each in word)


def _cut(word: str, draw: random.Random) -> str:
    place = draw.randint(0, len(word))
    return word[:place] + draw.choice(INVISIBLE) + word[place:]


def _shuffled(words: list[str], draw: random.Random) -> str:
    draw.shuffle(words)
    return " ".join(words)


RECIPES: dict[str, Recipe] = {
    "prefix": lambda text, copies, _, __: " ".join([*copies, text]),
    "suffix": lambda text, copies, _, __: " ".join([text, *copies]),
    "glued suffix": lambda text, copies, _, __: text + "".join(copies),
    "both ends": lambda text, copies, _, __: " ".join([*copies[::2], text, *copies[1::2]]),
    "spread evenly": lambda text, copies, _, __: _evenly(text, copies),
    "spread at random": lambda text, copies, _, draw: _at_random(text, copies, draw),
    "with one other word": lambda text, copies, other, _: f"{text} {_between(copies, other[:1])}",
    "with two others in turn": lambda text, copies, other, _: f"{text} {_between(copies, other[:2])}",
    "with two others": lambda text, copies, other, _: f"{_between(copies, [' '.join(other[:2])])} {text}",
    "with ever new words": lambda text, copies, other, _: f"{text} {_between(copies, other)}",
    "shuffled with another": lambda text, copies, other, draw: (
        f"{text} {_shuffled([*copies, *[other[0]] * len(copies)], draw)}"
    ),
    "in a phrase of four": lambda text, copies, other, _: f"{text} {_between(copies, [' '.join(other[:3])])}",
    "mixed case": lambda text, copies, _, draw: " ".join([text, *(_cased(each, draw) for each in copies)]),
    "mixed case, spread": lambda text, copies, _, draw: _at_random(
        text, [_cased(each, draw) for each in copies], draw
    ),
    "punctuation": lambda text, copies, _, draw: (
        f"{text} {''.join(each + draw.choice(PUNCTUATION) for each in copies)}"
    ),
    "invisible between": lambda text, copies, _, draw: (
        f"{text} {''.join(each + draw.choice(INVISIBLE) for each in copies)}"
    ),
    "invisible inside": lambda text, copies, _, draw: " ".join(
        [text, *(_cut(each, draw) for each in copies)]
    ),
    "full width": lambda text, copies, _, __: " ".join([*map(_wide, copies), text]),
    "accents between": lambda text, copies, _, draw: (
        f"{text} {''.join(each + draw.choice(ACCENTS) + draw.choice(('', ' ')) for each in copies)}"
    ),
}


def nested(special: str, draw: random.Random) -> str:
    """Nest a special token in itself, one to four times."""
    text = special
    for _ in range(draw.randint(1, 4)):
        place = draw.randint(1, len(special) - 1)
        text = special[:place] + text + special[place:]
    return text


def free_words(run: Run) -> list[str]:
    """Words of the vocabulary that may be planted without a flag."""
    vocabulary = run.vocabulary.filter(pl.col("category") == "OK")["token"]
    return [word for word in vocabulary if word.isalpha() and word.isascii() and len(word) > 1]


def shares(
    run: Path,
    corpus: Annotated[list[Path], typer.Option()],
    planted: Path | None = None,
    documents: int = 200,
    seed: int = 42,
) -> None:
    """How many planted documents are found, how many clean texts are flagged, and how many cleaning changes.

    Each text is one line of a corpus. A recipe plants 4 to 16 copies of a flagged word, or of a random word
    of the vocabulary without a flag, in so many random documents of each corpus. --planted, a planted.json,
    names further words to treat as flagged. Prints its tables.
    """
    opened = open_run(run)
    rules = Cleaner.from_run(opened).rules
    if planted:
        further = [row["token"] for row in planted_rows(planted)]
        rules = CleaningRules(words=(*rules.words, *further), specials=rules.specials)
    corpora = {
        path.stem: [line for line in path.read_text("utf-8").splitlines() if line.strip()] for path in corpus
    }
    cleaner, free, unsettled = Cleaner(rules), free_words(opened), 0
    print("corpus | texts | flagged | changed by cleaning")
    for name, texts in corpora.items():
        found = sum(bool(find_spans(text, rules)) for text in texts)
        changed = sum(cleaner(text) != text for text in texts)
        print(f"{name} | {len(texts):,} | {found} ({found / len(texts):.3%}) | {changed}")
    print("recipe |", " | ".join(f"{name}, {kind}" for name in corpora for kind in ("flagged", "other")))
    for recipe, plant in RECIPES.items():
        found_shares = []
        for name, texts in corpora.items():
            for words in (list(rules.words), free):
                draw = random.Random(f"{seed} {recipe} {name} {words is free}")
                hits = 0
                for _ in range(documents):
                    copies = [draw.choice(words)] * draw.randint(4, 16)
                    text = plant(draw.choice(texts), copies, draw.sample(free, 20), draw)
                    hits += bool(find_spans(text, rules))
                    unsettled += cleaner(cleaner(text)) != cleaner(text)
                found_shares.append(f"{hits / documents:.3f}")
        print(recipe, "|", " | ".join(found_shares))
    draw, found_shares = random.Random(seed), []
    for texts in corpora.values():
        hits = 0
        for _ in range(documents):
            text = f"{draw.choice(texts)} {nested(draw.choice(rules.specials), draw)}"
            hits += any(span.kind is SpanKind.SPECIAL for span in find_spans(text, rules))
            unsettled += cleaner(cleaner(text)) != cleaner(text)
        found_shares.append(f"{hits / documents:.3f}")
    print("nested special token |", " | ".join(found_shares))
    print(f"texts that cleaning did not settle: {unsettled}")


def ranks(run: Path, data: Path, model: str, documents: int = 200, seed: int = 42) -> None:
    """How far are the ranks of planted documents from those of the originals, cleaned and not?"""
    opened = open_run(run)
    cleaner, free = Cleaner.from_run(opened), free_words(opened)
    rows = json_lines(data / "corpus.jsonl")
    texts = [f"{row['title']} {row['text']}".strip() for row in rows if row["text"].strip()]
    queries = [row["text"] for row in json_lines(data / "queries.jsonl")]
    draw = random.Random(seed)
    chosen = sorted(draw.sample(range(len(texts)), documents))
    recipes = np.array([sorted(RECIPES)[place % len(RECIPES)] for place in range(documents)])
    planted = []
    for number, recipe in zip(chosen, recipes, strict=True):
        copies = [draw.choice(cleaner.rules.words)] * draw.randint(4, 16)
        planted.append(RECIPES[recipe](texts[number], copies, draw.sample(free, 20), draw))
    cleaned = [cleaner(text) for text in planted]
    same = np.array([text == texts[number] for text, number in zip(cleaned, chosen, strict=True)])
    encoder = plain_model(model)
    index, asked = (encoder.encode(each, normalize_embeddings=True) for each in (texts, queries))
    before = ranks_of(index, asked, chosen)
    moved = {}
    for name, changed in (("planted", planted), ("cleaned", cleaned)):
        replaced = index.copy()
        replaced[chosen] = encoder.encode(changed, normalize_embeddings=True)
        moved[name] = ranks_of(replaced, asked, chosen) - before
    checks = []
    for recipe in ("all", *sorted(RECIPES)):
        own = (recipes == recipe) | (recipe == "all")
        means = {name: float(difference[:, own].mean()) for name, difference in moved.items()}
        counts = {"documents": int(own.sum()), "to_the_letter": int(same[own].sum())}
        name = f"{recipe}: {counts['to_the_letter']} of {counts['documents']} cleaned to the letter"
        ours = f"{means['cleaned']:+.2f}; before cleaning {means['planted']:+.1f}"
        passed = abs(means["cleaned"]) < RANKS_APART
        checks.append(check(name, f"below {RANKS_APART}", ours, passed, **means, **counts))
    finish(checks, "cleaning", strict=False, queries=len(queries), seed=seed)


def ranks_of(index: Vectors, queries: Vectors, chosen: list[int]) -> Vectors:
    """Count, for each query, the documents that are closer than each of the chosen ones, shape (q, c)."""
    similarities = queries @ index.T
    return np.stack([(similarities > similarities[:, [number]]).sum(axis=1) for number in chosen], axis=1)


class Attack:
    """HotFlip on a SentenceTransformer with mean pooling.

    In each of ``steps``, one of ``length`` free tokens is replaced by the best of ``candidates``.
    """

    def __init__(self, model: Any, steps: int, candidates: int, length: int, seed: int) -> None:
        self._tokenizer = model.tokenizer
        self._backbone = next(module for module in model.modules() if hasattr(module, "get_input_embeddings"))
        self._rows = self._backbone.get_input_embeddings().weight.detach()
        self._steps, self._candidates, self._length = steps, candidates, length
        self._random = np.random.default_rng(seed)
        entries = self._tokenizer.convert_ids_to_tokens(range(len(self._tokenizer)))
        self._usable = torch.tensor([entry.isascii() and entry.isalpha() for entry in entries])

    def optimise(self, text: str, target: torch.Tensor) -> str:
        """Append free tokens to a text, each at last the best one found for the target vector, shape (d,)."""
        content = self._tokenizer(text, add_special_tokens=False, truncation=True, max_length=60)["input_ids"]
        usable = self._usable.nonzero().flatten().numpy()
        free = self._random.choice(usable, self._length).tolist()
        best = self._similarity([content + free], target)[0]
        for _ in range(self._steps):
            place = int(self._random.integers(self._length))
            gradient = self._gradient(content, free, target)[place]
            scores = (self._rows @ gradient).masked_fill(~self._usable, -torch.inf)
            tried = [
                [*free[:place], int(token), *free[place + 1 :]]
                for token in scores.topk(self._candidates).indices
            ]
            found = self._similarity([content + each for each in tried], target)
            if found.max() > best:
                best, free = found.max(), tried[int(found.argmax())]
        return f"{text} {self._tokenizer.decode(free)}"

    def _ids(self, contents: list[list[int]]) -> torch.Tensor:
        first, last = self._tokenizer.cls_token_id, self._tokenizer.sep_token_id
        return torch.tensor([[first, *content, last] for content in contents])

    def _vectors(self, embedded: torch.Tensor) -> torch.Tensor:
        states = self._backbone(inputs_embeds=embedded).last_hidden_state.mean(1)
        return torch.nn.functional.normalize(states, dim=1)

    def _similarity(self, contents: list[list[int]], target: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = self._vectors(self._rows[self._ids(contents)]) @ target
        return found

    def _gradient(self, content: list[int], free: list[int], target: torch.Tensor) -> torch.Tensor:
        embedded = self._rows[self._ids([content + free])].clone().requires_grad_()
        (gradient,) = torch.autograd.grad((self._vectors(embedded) @ target).sum(), embedded)
        free_part: torch.Tensor = gradient[0, -1 - self._length : -1]
        return free_part


def adversarial(
    run: Path,
    cranfield: Path,
    model: str = MINILM,
    documents: int = 20,
    steps: int = 40,
    candidates: int = 8,
    length: int = 12,
    seed: int = 42,
) -> None:
    """What share of documents optimised by gradient search does the search for copies find?

    It makes documents that are pulled toward groups of queries: a document of the collection, followed by
    --length tokens that are replaced one at a time by the one whose gradient promises the most (Ebrahimi et
    al., ACL 2018; for retrieval, Zhong et al., EMNLP 2023). Nothing in them is repeated on purpose.
    """
    from sklearn.cluster import KMeans

    encoder: Any = load_encoder(model, device="cpu")
    rules = rules_of_run(open_run(run))
    corpus = [row["text"] for row in json_lines(cranfield / "corpus.jsonl")]
    queries = encoder.encode([row["text"] for row in json_lines(cranfield / "queries.jsonl")])
    shortened = [" ".join(text.split()[:60]) for text in corpus if text.strip()]
    groups = KMeans(documents, random_state=seed, n_init=4).fit_predict(queries)
    tenth = np.sort(queries @ encoder.encode(shortened).T, axis=1)[:, -TOP]
    chosen = np.random.default_rng(seed).choice(len(shortened), documents, replace=False)
    attack = Attack(encoder.model, steps, candidates, length, seed)
    made: list[dict[str, Any]] = []
    for group, place in enumerate(chosen):
        own, limits = queries[groups == group], tenth[groups == group]
        document = " ".join(shortened[place].split()[:25])
        text = attack.optimise(document, torch.from_numpy(own.mean(0)))
        before, after = (own @ encoder.encode([document, text]).T).T
        found = sorted({span.kind.value for span in find_spans(text, rules)})
        means = {"before": float(before.mean()), "after": float(after.mean())}
        tops = {"top_before": float((before > limits).mean()), "top_after": float((after > limits).mean())}
        made.append({"text": text, "queries": len(own), **means, **tops, "found": found})
        print(f"{group + 1}: {means['before']:.3f} -> {means['after']:.3f}, {found}", flush=True)
    weights = [each["queries"] for each in made]
    result: dict[str, Any] = {
        "documents": len(made),
        "found": sum(bool(each["found"]) for each in made),
        **{f"similarity_{key}": float(np.mean([each[key] for each in made])) for key in ("before", "after")},
        **{
            key: float(np.average([each[key] for each in made], weights=weights))
            for key in ("top_before", "top_after")
        },
    }
    settings = {"model": model, "steps": steps, "candidates": candidates, "length": length, "seed": seed}
    write_json("adversarial_documents", settings=settings, **result, made=made)
    shares = f"{result['top_before']:.0%} of their queries before, {result['top_after']:.0%} after"
    print(f"{result['found']} of {len(made)} found; among the first {TOP} for {shares}")


Words = list[str]


def inside(words: Words, piece: Words, draw: random.Random) -> Words:
    place = draw.randrange(len(words) + 1)
    return [*words[:place], *piece, *words[place:]]


def spread(words: Words, copies: Words, draw: random.Random) -> Words:
    found = list(words)
    for copy in copies:
        found.insert(draw.randrange(len(found) + 1), copy)
    return found


def interleaved(words: Words, copies: Words, draw: random.Random) -> Words:
    other = draw.choice(("river", "window", "and", "report"))
    return inside(words, [word for copy in copies for word in (copy, other)], draw)


def mixed_case(words: Words, copies: Words, draw: random.Random) -> Words:
    cased = ["".join(draw.choice((c.lower(), c.upper())) for c in each) for each in copies]
    return inside(words, cased, draw)


# The last one plants a special token in place of copies.
SCANNED: dict[str, Callable[[Words, Words, random.Random], Words]] = {
    "prefix": lambda words, copies, _: copies + words,
    "suffix": lambda words, copies, _: words + copies,
    "spread": spread,
    "interleaved": interleaved,
    "mixed_case": mixed_case,
    "nested_special": lambda words, _, draw: inside(
        words, ["<|endof<|endoftext|>text|>"] * draw.randint(1, 4), draw
    ),
}


def scan(run: list[Path], effect: bool = False, documents: int | None = None) -> None:
    """Scan planted documents: what is found, how fast, in what memory, how well effects are predicted.

    Cranfield and TREC are in shared/data beside the project. Continues scan.json, a part per model.
    """
    place = RESULTS / "scan.json"
    results: dict[str, Any] = json.loads(place.read_text("utf-8")) if place.is_file() else {}
    data = SHARED / "data"
    rows = json_lines(data / "cranfield" / "corpus.jsonl")
    cranfield = [f"{row['title']} {row['text']}" for row in rows if row["text"].strip()]
    trec = [row["text"] for row in json_lines(data / "trec" / "train.jsonl")]
    for opened in map(open_run, run):
        row = results.setdefault(name := Path(opened.model_name).name, {})
        row["found"] = {"cranfield": found_share(opened, cranfield), "trec": found_share(opened, trec)}
        if effect:
            queries = [each["text"] for each in json_lines(data / "cranfield" / "queries.jsonl")]
            row["effect"] = effects(opened, cranfield, queries)
        print(name, json.dumps(row, indent=2))
    if documents:
        results["throughput"] = throughput(run[0], cranfield, documents)
        print(json.dumps(results["throughput"], indent=2))
    about = ("date", "hardware", "versions", "command")
    write_json("scan", **{key: value for key, value in results.items() if key not in about})


def planted_in(
    texts: Sequence[str], count: int, words: Sequence[str], recipes: Sequence[str], draw: random.Random
) -> tuple[list[str], dict[int, str]]:
    """The texts with copies in some, drawn at random, and what was planted in these."""
    documents, planted = list(texts), {}
    for number in sorted(draw.sample(range(len(texts)), count)):
        recipe = draw.choice(recipes)
        copies = [draw.choice(words)] * draw.randint(4, 16)
        documents[number] = " ".join(SCANNED[recipe](texts[number].split(), copies, draw))
        planted[number] = f"{recipe} {copies[0]} x {len(copies)}"
    return documents, planted


def found_share(run: Run, texts: Sequence[str]) -> dict[str, Any]:
    """Plant copies in a fiftieth of the documents, twenty times, and count what is found."""
    words, count = rules_of_run(run).words, round(0.02 * len(texts))
    found, false, missed = 0, 0, []
    for repetition in range(20):
        documents, planted = planted_in(texts, count, words, list(SCANNED), random.Random(repetition))
        numbers = set(scan_documents(run, documents).documents["number"].to_list())
        found += len(numbers & set(planted))
        false = max(false, len(numbers - set(planted)))
        missed += [told for number, told in planted.items() if number not in numbers]
    return {
        "documents": len(texts),
        "planted": 20 * count,
        "recall": found / (20 * count),
        "false_alarms": false / (len(texts) - count),
        "missed": missed[:10],
    }


def effects(run: Run, texts: Sequence[str], queries: list[str]) -> dict[str, Any]:
    """Plant copies in sixty documents, and compare predicted with measured shifts."""
    documents, _ = planted_in(texts, 60, rules_of_run(run).words, list(SCANNED)[:5], random.Random(0))
    result = scan_documents(run, documents, effect="measured", queries=queries).result
    return {} if result.effect is None else {"matter": result.matter, **result.effect.model_dump()}


def throughput(run: Path, texts: Sequence[str], documents: int) -> dict[str, Any]:
    """Scan a file of documents of 150 words in a process of its own, and measure its time and memory."""
    draw = random.Random(0)
    vocabulary = sorted({word for text in texts for word in text.split()})
    pool = [" ".join(draw.choices(vocabulary, k=150)) for _ in range(5000)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documents.txt"
        with path.open("w") as stream:
            for number in range(documents):
                stream.write(f"{pool[number % len(pool)]} {number}\n")
        command = [sys.executable, "-m", "stickytoken", "scan", str(run), str(path), "--quiet"]
        started, largest = time.perf_counter(), 0
        process = subprocess.Popen(
            [*command, "--format", "json", "--scan-folder", f"{folder}/scan"], stdout=subprocess.DEVNULL
        )
        while process.poll() is None:
            largest = max(largest, memory(process.pid))
            time.sleep(0.2)
        seconds = time.perf_counter() - started
    return {
        "documents": documents,
        "seconds": round(seconds, 1),
        "documents_per_second": round(documents / seconds),
        "memory_mb": round(largest / 2**20),
        "status": process.returncode,
    }


def memory(pid: int) -> int:
    """Resident memory of a process and its children, in bytes (Linux)."""
    total = 0
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (str(pid), *children):
            total += int(Path(f"/proc/{each}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError):
        return total
    return total


if __name__ == "__main__":
    commands(__doc__, shares, ranks, adversarial, scan)
