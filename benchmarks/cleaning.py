"""Documents with planted copies or optimised tokens: what is found, what cleaning changes, how fast.

RUN is a finished run of a model with planted rows; CRANFIELD and DATA are retrieval sets in the layout of
BEIR.
"""

from __future__ import annotations

import io
import json
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import typer
from numpy.typing import NDArray

from bench import MINILM, RESULTS, SHARED, Results, commands, json_lines, retrieval_set, watched, write_json
from models import plain_model, planted_rows
from stickytoken import Run, load_encoder, open_run
from stickytoken.cleaning import Cleaner, CleaningRules, find_spans
from stickytoken.cleaning.files import clean_file
from stickytoken.cleaning.rules import rules_of_run
from stickytoken.data.documents import NamedColumns
from stickytoken.data.rewriting import open_source
from stickytoken.scanning.scan import is_only_suspected, scan_documents

Vectors = NDArray[np.floating[Any]]
RANKS_APART, TOP, SEED = 0.1, 10, 42
HOTFLIP = {"steps": 40, "candidates": 8, "length": 12}
INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
PUNCTUATION = (", ", ". ", "! ", "; ", " - ", "/", "|", "_", "... ")
ACCENTS = "\u0301\u0300\u0336"
FULL_WIDTH = {code: code + 0xFEE0 for code in range(ord("!"), ord("~") + 1)}

# A document, the copies, other words and a generator, made into a planted document.
Recipe = Callable[[str, Sequence[str], Sequence[str], random.Random], str]


def _spread(document: str, copies: Sequence[str], gaps: Sequence[int]) -> str:
    words = document.split()
    for gap, copy in sorted(zip(gaps, copies, strict=True), reverse=True):
        words.insert(gap, copy)
    return " ".join(words)


def _evenly(document: str, copies: Sequence[str]) -> str:
    step = len(document.split()) / (len(copies) + 1)
    return _spread(document, copies, [round((n + 1) * step) for n in range(len(copies))])


def _at_random(document: str, copies: Sequence[str], draw: random.Random) -> str:
    length = len(document.split())
    return _spread(document, copies, [draw.randint(0, length) for _ in copies])


def _between(copies: Sequence[str], others: Sequence[str]) -> str:
    """Put other words, over and over, behind the copies."""
    return " ".join(f"{copy} {others[number % len(others)]}" for number, copy in enumerate(copies))


def _joined(copies: Sequence[str], signs: Sequence[str], draw: random.Random) -> str:
    return "".join(copy + draw.choice(signs) for copy in copies)


def _cased(copies: Sequence[str], draw: random.Random) -> list[str]:
    return ["".join(draw.choice((each.upper(), each.lower())) for each in word) for word in copies]


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
    "mixed case": lambda text, copies, _, draw: " ".join([text, *_cased(copies, draw)]),
    "mixed case, spread": lambda text, copies, _, draw: _at_random(text, _cased(copies, draw), draw),
    "punctuation": lambda text, copies, _, draw: f"{text} {_joined(copies, PUNCTUATION, draw)}",
    "invisible between": lambda text, copies, _, draw: f"{text} {_joined(copies, INVISIBLE, draw)}",
    "invisible inside": lambda text, copies, _, draw: " ".join(
        [text, *(_cut(each, draw) for each in copies)]
    ),
    "full width": lambda text, copies, _, __: f"{' '.join(copies).translate(FULL_WIDTH)} {text}",
    "accents between": lambda text, copies, _, draw: (
        f"{text} {''.join(each + draw.choice(ACCENTS) + draw.choice(('', ' ')) for each in copies)}"
    ),
}
# What `scan` plants; the last one plants a special token in place of copies.
SCANNED: dict[str, Recipe] = {
    "prefix": RECIPES["prefix"],
    "suffix": RECIPES["suffix"],
    "spread": RECIPES["spread at random"],
    "interleaved": lambda text, copies, other, draw: _at_random(text, [_between(copies, other[:1])], draw),
    "mixed_case": lambda text, copies, _, draw: _at_random(text, [" ".join(_cased(copies, draw))], draw),
    "nested_special": lambda text, _, __, draw: _at_random(
        text, [" ".join(["<|endof<|endoftext|>text|>"] * draw.randint(1, 4))], draw
    ),
}


def copies_of(words: Sequence[str], draw: random.Random) -> list[str]:
    return [draw.choice(words)] * draw.randint(4, 16)


def free_words(run: Run) -> list[str]:
    """Words of the vocabulary that may be planted without a flag."""
    vocabulary = run.vocabulary.filter(pl.col("category") == "OK")["token"]
    return [word for word in vocabulary if word.isalpha() and word.isascii() and len(word) > 1]


def shares(
    run: Path,
    corpus: Annotated[list[Path], typer.Option()],
    planted: Path | None = None,
    documents: int = 200,
) -> None:
    """How many planted documents are found, how many clean texts are flagged, and how many cleaning changes.

    Each line of a corpus is a text. A recipe plants 4 to 16 copies of a flagged word, or of another one, in
    so many random texts. --planted, a planted.json, names further words to treat as flagged.
    """
    opened = open_run(run)
    rules = Cleaner.from_run(opened).rules
    if planted:
        further = [row["token"] for row in planted_rows(planted)]
        rules = CleaningRules(words=(*rules.words, *further), specials=rules.specials)
    corpora = {path.stem: list(filter(str.strip, path.read_text("utf-8").splitlines())) for path in corpus}
    cleaner, free, unsettled = Cleaner(rules), free_words(opened), 0
    results = Results("cleaning_shares", documents=documents)
    for name, texts in corpora.items():
        found = sum(bool(find_spans(text, rules)) for text in texts)
        changed = sum(cleaner(text) != text for text in texts)
        told = f"{found} flagged, {changed} changed by cleaning"
        results.check(f"{name}, {len(texts):,} texts", "shown", told)

    def nested(text: str, _: object, __: object, draw: random.Random) -> str:
        """Nest a special token in itself, one to four times."""
        special = found = draw.choice(rules.specials)
        for _ in range(draw.randint(1, 4)):
            place = draw.randint(1, len(special) - 1)
            found = special[:place] + found + special[place:]
        return f"{text} {found}"

    for recipe, plant in (RECIPES | {"nested special token": nested}).items():
        shares = {}
        for name, texts in corpora.items():
            for kind, words in (("flagged", list(rules.words)), ("other", free)):
                draw, hits = random.Random(f"{SEED} {recipe} {name} {words is free}"), 0
                for _ in range(documents):
                    copies = copies_of(words, draw)
                    text = plant(draw.choice(texts), copies, draw.sample(free, 20), draw)
                    hits += bool(find_spans(text, rules))
                    unsettled += cleaner(cleaner(text)) != cleaner(text)
                shares[f"{name}, {kind}"] = hits / documents
        told = "; ".join(f"{cell} {share:.3f}" for cell, share in shares.items())
        results.check(recipe, "shown", told, shares=shares)
    results.check("texts that cleaning did not settle", "0", str(unsettled), unsettled == 0)
    results.finish(strict=False)


def ranks(run: Path, data: Path, model: str, documents: int = 200) -> None:
    """How far are the ranks of planted documents from those of the originals, cleaned and not?"""
    opened = open_run(run)
    cleaner, free = Cleaner.from_run(opened), free_words(opened)
    texts, queries = retrieval_set(data)
    draw = random.Random(SEED)
    chosen = sorted(draw.sample(range(len(texts)), documents))
    recipes = np.array([sorted(RECIPES)[place % len(RECIPES)] for place in range(documents)])
    planted = []
    for number, recipe in zip(chosen, recipes, strict=True):
        copies = copies_of(cleaner.rules.words, draw)
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
    results = Results("cleaning", queries=len(queries))
    for recipe in ("all", *sorted(RECIPES)):
        own = (recipes == recipe) | (recipe == "all")
        means = {name: float(difference[:, own].mean()) for name, difference in moved.items()}
        title = f"{recipe}: {int(same[own].sum())} of {int(own.sum())} cleaned to the letter"
        ours = f"{means['cleaned']:+.2f}; before cleaning {means['planted']:+.1f}"
        results.check(title, f"below {RANKS_APART}", ours, abs(means["cleaned"]) < RANKS_APART)
    results.finish(strict=False)


def ranks_of(index: Vectors, queries: Vectors, chosen: list[int]) -> Vectors:
    """Count, for each query, the documents that are closer than each of the chosen ones, shape (q, c)."""
    similarities = queries @ index.T
    return np.stack([(similarities > similarities[:, [number]]).sum(axis=1) for number in chosen], axis=1)


def hotflip(model: Any) -> Callable[[str, torch.Tensor], str]:
    """The attack on a model with mean pooling, as a function of a text and a target vector, shape (d,).

    It appends ``length`` free tokens; in each of ``steps``, one is replaced by the best of ``candidates``.
    """
    tokenizer, generator = model.tokenizer, np.random.default_rng(SEED)
    backbone = next(module for module in model.modules() if hasattr(module, "get_input_embeddings"))
    rows, length = backbone.get_input_embeddings().weight.detach(), HOTFLIP["length"]
    entries = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    usable = torch.tensor([entry.isascii() and entry.isalpha() for entry in entries])

    def embedded(contents: list[list[int]]) -> torch.Tensor:
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
        found: torch.Tensor = rows[torch.tensor([[first, *content, last] for content in contents])]
        return found

    def similarity(vectors: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        states = backbone(inputs_embeds=vectors).last_hidden_state.mean(1)
        return torch.nn.functional.normalize(states, dim=1) @ target

    def optimised(text: str, target: torch.Tensor) -> str:
        content = tokenizer(text, add_special_tokens=False, truncation=True, max_length=60)["input_ids"]
        free = generator.choice(usable.nonzero().flatten().numpy(), length).tolist()
        with torch.no_grad():
            best = similarity(embedded([content + free]), target)[0]
        for _ in range(HOTFLIP["steps"]):
            place = int(generator.integers(length))
            vectors = embedded([content + free]).clone().requires_grad_()
            (gradient,) = torch.autograd.grad(similarity(vectors, target).sum(), vectors)
            promised = (rows @ gradient[0, place - 1 - length]).masked_fill(~usable, -torch.inf)
            tried = [
                [*free[:place], int(token), *free[place + 1 :]]
                for token in promised.topk(HOTFLIP["candidates"]).indices
            ]
            with torch.no_grad():
                found = similarity(embedded([content + each for each in tried]), target)
            if found.max() > best:
                best, free = found.max(), tried[int(found.argmax())]
        return f"{text} {tokenizer.decode(free)}"

    return optimised


def adversarial(run: Path, cranfield: Path, documents: int = 20) -> None:
    """What share of documents optimised by gradient search does the search for copies find?

    Documents are pulled toward groups of queries by tokens behind them, replaced one at a time by the one
    whose gradient promises the most (Ebrahimi et al., ACL 2018; for retrieval, Zhong et al., EMNLP 2023).
    """
    from sklearn.cluster import KMeans

    encoder: Any = load_encoder(MINILM, device="cpu")
    rules = rules_of_run(open_run(run))
    corpus = [row["text"] for row in json_lines(cranfield / "corpus.jsonl")]
    queries = encoder.encode([row["text"] for row in json_lines(cranfield / "queries.jsonl")])
    shortened = [" ".join(text.split()[:60]) for text in corpus if text.strip()]
    groups = KMeans(documents, random_state=SEED, n_init=4).fit_predict(queries)
    tenth = np.sort(queries @ encoder.encode(shortened).T, axis=1)[:, -TOP]
    chosen = np.random.default_rng(SEED).choice(len(shortened), documents, replace=False)
    optimised = hotflip(encoder.model)
    made: list[dict[str, Any]] = []
    for group, place in enumerate(chosen):
        own, limits = queries[groups == group], tenth[groups == group]
        document = " ".join(shortened[place].split()[:25])
        text = optimised(document, torch.from_numpy(own.mean(0)))
        before, after = (own @ encoder.encode([document, text]).T).T
        found = sorted({span.kind.value for span in find_spans(text, rules)})
        means = {"before": float(before.mean()), "after": float(after.mean())}
        tops = {"top_before": float((before > limits).mean()), "top_after": float((after > limits).mean())}
        made.append({"text": text, "queries": len(own), **means, **tops, "found": found})
        print(f"{group + 1}: {means['before']:.3f} -> {means['after']:.3f}, {found}", flush=True)
    every = pl.DataFrame(made)
    similarity = {key: every[key].mean() for key in ("before", "after")}
    top = {
        key: np.average(every[f"top_{key}"], weights=every["queries"]).item() for key in ("before", "after")
    }
    hits = sum(bool(each["found"]) for each in made)
    about: dict[str, Any] = {"settings": HOTFLIP, "documents": len(made), "found": hits}
    write_json("adversarial_documents", **about, similarity=similarity, top=top, made=made)
    shares = f"{top['before']:.0%} of their queries before, {top['after']:.0%} after"
    print(f"{hits} of {len(made)} found; among the first {TOP} for {shares}")


def scan(run: list[Path], effect: bool = False, documents: int | None = None) -> None:
    """Scan planted documents of Cranfield and TREC, in shared/data beside the project: what is found?

    --effect compares predicted with measured effects; --documents 1000000 measures throughput and memory.
    Continues scan.json, a part per model.
    """
    place = RESULTS / "scan.json"
    found: dict[str, Any] = json.loads(place.read_text("utf-8")) if place.is_file() else {}
    found = {key: found[key] for key in found.keys() - {"date", "hardware", "versions", "command"}}
    cranfield, queries = retrieval_set(SHARED / "data" / "cranfield")
    trec = [row["text"] for row in json_lines(SHARED / "data" / "trec" / "train.jsonl")]
    for opened in map(open_run, run):
        row = found.setdefault(name := Path(opened.model_name).name, {})
        row["found"] = {"cranfield": found_share(opened, cranfield), "trec": found_share(opened, trec)}
        if effect:
            texts, _ = planted_in(opened, cranfield, 60, list(SCANNED)[:5], 0)
            result = scan_documents(opened, texts, effect="measured", queries=queries).result
            row["effect"] = result.effect and {"matter": result.matter, **result.effect.model_dump()}
        print(name, json.dumps(row, indent=2))
    if documents:
        found["throughput"] = throughput(run[0], cranfield, documents)
        print(json.dumps(found["throughput"], indent=2))
    write_json("scan", **found)


def planted_in(
    run: Run, texts: Sequence[str], count: int, recipes: Sequence[str], seed: int
) -> tuple[list[str], dict[int, str]]:
    """The texts with copies of sticky words in some, drawn at random, and what was planted in these."""
    draw, words = random.Random(seed), rules_of_run(run).words
    documents, planted = list(texts), {}
    for number in sorted(draw.sample(range(len(texts)), count)):
        recipe, copies = draw.choice(recipes), copies_of(words, draw)
        other = draw.choice(("river", "window", "and", "report"))
        documents[number] = SCANNED[recipe](texts[number], copies, [other], draw)
        planted[number] = f"{recipe} {copies[0]} x {len(copies)}"
    return documents, planted


def found_share(run: Run, texts: Sequence[str]) -> dict[str, Any]:
    """Plant copies in a fiftieth of the documents, twenty times, and count what is found."""
    count = round(0.02 * len(texts))
    found, false, missed = 0, 0, []
    for repetition in range(20):
        documents, planted = planted_in(run, texts, count, list(SCANNED), repetition)
        numbers = set(scan_documents(run, documents).documents["number"].to_list())
        found += len(numbers & set(planted))
        false = max(false, len(numbers - set(planted)))
        missed += [told for number, told in planted.items() if number not in numbers]
    recall, false_alarms = found / (20 * count), false / (len(texts) - count)
    counted = {"documents": len(texts), "planted": 20 * count, "recall": recall}
    return counted | {"false_alarms": false_alarms, "missed": missed[:10]}


FIVE_WAYS = ("suffix", "glued suffix", "with one other word", "invisible inside", "mixed case")


def planted_set(
    words: Sequence[str], texts: Sequence[str], count: int, seed: int
) -> tuple[list[str], dict[int, tuple[str, str]]]:
    """Put eight copies of a word into some texts, in five ways in turn; say which way and word each has."""
    draw = random.Random(seed)
    documents = list(texts)
    planted: dict[int, tuple[str, str]] = {}
    places = sorted(draw.sample(range(len(texts)), count))
    for turn, place in enumerate(places):
        way = FIVE_WAYS[turn % len(FIVE_WAYS)]
        word = draw.choice(words)
        other = draw.choice([word for word in ("river", "window", "report") if word not in words])
        documents[place] = RECIPES[way](texts[place], [word] * 8, [other], draw)
        planted[place] = (way, word)
    return documents, planted


def occurrences(word: str, text: str) -> int:
    """Count a word in a text, in any case, glued to others, and with invisible characters inside."""
    visible_text = "".join(character for character in text if character not in INVISIBLE)
    return visible_text.casefold().count(word.casefold())


def five_ways(cranfield: Path, run: Path, planted: int = 60, clean: int = 1340, repetitions: int = 5) -> None:
    """Plant copies in 60 of 1,400 texts in five ways: does `scan` find them, and `clean` remove them?

    RUN is a finished run that flags at least one token. Each repetition draws other texts and other words; a
    document is cleaned if as many copies are left as its text had before.
    """
    opened = open_run(run)
    documents, _ = retrieval_set(cranfield)
    cleaner = Cleaner.from_run(opened)
    words = [word for word in cleaner.rules.words if word.isalpha() and word.isascii() and len(word) > 2]
    results = Results("cleaning_five_ways", planted=planted, clean=clean, words=words)
    for seed in range(repetitions):
        texts = random.Random(f"{SEED} {seed}").sample(documents, min(planted + clean, len(documents)))
        made, what = planted_set(words, texts, planted, seed)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "documents.jsonl"
            rows = [{"_id": f"d[SEP]{number}", "text": text} for number, text in enumerate(made)]
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
            scanned = scan_documents(opened, path).documents
            output = io.BytesIO()
            clean_file(open_source(path, NamedColumns()), cleaner, output)
        after = [json.loads(line) for line in output.getvalue().decode().splitlines()]
        certain = scanned.filter(~is_only_suspected())
        found = set(certain["number"].to_list())
        removed = 0
        missed = []
        for place, (way, word) in what.items():
            if occurrences(word, after[place]["text"]) <= occurrences(word, texts[place]):
                removed += 1
            if place not in found:
                missed.append(f"{way}: {word}")
        false = set(scanned["number"].to_list()) - set(what)
        changed = {place for place, row in enumerate(after) if row["text"] != made[place]}
        hits = len(found & set(what))
        ids_stay = [row["_id"] for row in after] == [row["_id"] for row in rows]
        numbered = f"draw {seed + 1}, {len(made):,} texts"
        results.check(
            f"{numbered}: found", "95%", f"{hits} of {planted}", hits >= 0.95 * planted, missed=missed
        )
        results.check(f"{numbered}: removed", "95%", f"{removed} of {planted}", removed >= 0.95 * planted)
        told = f"{len(false)}, {len(false & found)} of them changed by cleaning"
        results.check(f"{numbered}: false", "at most 3", told, len(false) <= 3)
        same = "the same documents" if changed == found else f"{len(changed ^ found)} documents differ"
        results.check(f"{numbered}: found and changed", "the same documents", same, changed == found)
        results.check(f"{numbered}: ids stay", "all", "all" if ids_stay else "changed", ids_stay)
    results.finish()


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
        command += ["--format", "json", "--scan-folder", f"{folder}/scan"]
        status, _, seconds, peak = watched(command)
    rate, memory = round(documents / seconds), round(peak / 2**20)
    found = {"documents": documents, "seconds": round(seconds, 1), "documents_per_second": rate}
    return found | {"memory_mb": memory, "status": status}


if __name__ == "__main__":
    commands(__doc__, shares, ranks, adversarial, scan, **{"five-ways": five_ways})
