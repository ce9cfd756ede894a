"""Measure how well copies of words, and texts optimised for a search, are found in documents and cleaned.

Every command inserts text into real documents. It counts the documents in which something is found, or
compares cleaned documents with the originals.

CRANFIELD is a retrieval set in the layout of BEIR, and RUN a finished run of a model with sticky tokens, such
as src/stickytoken/demo/example/all-MiniLM-L6-v2. Each command takes minutes on a core.

    python benchmarks/cleaning.py structure
    python benchmarks/cleaning.py latency CRANFIELD RUN
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
import typer
from numpy.typing import NDArray
from tokenizers import Tokenizer, normalizers

from bench import MINILM, SHARED, Results, commands, json_lines, retrieval_set, write_json
from models import planted_rows
from stickytoken import Run, load_encoder, open_run
from stickytoken.cleaning import Cleaner, CleaningRules, find_spans
from stickytoken.cleaning.rules import rules_of_run
from stickytoken.encoders.files.resolution import resolve_model
from stickytoken.encoders.inputs.tokenizer import HuggingFaceTokenizer
from structured_documents import NAMES, STATES, structured_documents, with_copies

Vectors = NDArray[np.floating[Any]]

SEED = 42
# Number of best documents of a query that count as its results.
TOP = 10
# Number of words from which a recipe takes words to insert between copies.
FILLER_WORDS = 20
# Settings of the gradient search: number of replacements, tokens that are tried in each, and appended tokens.
HOTFLIP = {"steps": 40, "candidates": 8, "length": 12}
# Documents of the gradient search are cut to their first words. An optimised document starts with even fewer
# words, so that the appended tokens are a large share of it; it has at most this many tokens before them.
DOCUMENT_WORDS = 60
OPTIMISED_WORDS = 25
OPTIMISED_TOKENS = 60

INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"
PUNCTUATION = (", ", ". ", "! ", "; ", " - ", "/", "|", "_", "... ")
ACCENTS = "\u0301\u0300\u0336"
# Full-width forms of the visible ASCII characters, keyed by code point, for `str.translate`.
FULL_WIDTH = {code: code + 0xFEE0 for code in range(ord("!"), ord("~") + 1)}

# Sticky tokens of the packaged model.
FOREIGN_WORDS = ("\u0630", "\u0274", "\u062b", "\u961d")

RunFolder = Annotated[Path, typer.Argument(help="Folder of a finished run of a model with sticky tokens.")]
CranfieldFolder = Annotated[Path, typer.Argument(help="Folder of Cranfield in the layout of BEIR.")]


@dataclass(frozen=True)
class Planting:
    """A document, and what a recipe inserts into it.

    Attributes:
        text: The original document.
        copies: Copies of one word.
        fillers: Other words, which some recipes insert between the copies.
        draw: Random generator for gaps, letter case and separators.
    """

    text: str
    copies: Sequence[str]
    fillers: Sequence[str]
    draw: random.Random

    @property
    def spaced_copies(self) -> str:
        """The copies, separated by spaces."""
        return " ".join(self.copies)

    def append(self, insertion: str) -> str:
        """Return the document with an insertion after it."""
        return f"{self.text} {insertion}"

    def prepend(self, insertion: str) -> str:
        """Return the document with an insertion before it."""
        return f"{insertion} {self.text}"

    def insert_at_random(self, insertions: Sequence[str]) -> str:
        """Return the document with each insertion in a random gap between its words."""
        word_count = len(self.text.split())
        gaps = [self.draw.randint(0, word_count) for _ in insertions]
        return insert_in_gaps(self.text, insertions, gaps)

    def alternate(self, fillers: Sequence[str]) -> str:
        """Return the copies with a filler behind each; the fillers take turns."""
        pairs = [f"{copy} {fillers[index % len(fillers)]}" for index, copy in enumerate(self.copies)]
        return " ".join(pairs)

    def with_separators(self, separators: Sequence[str]) -> str:
        """Return the copies with a random separator, and no space, behind each."""
        return "".join(copy + self.draw.choice(separators) for copy in self.copies)

    def in_mixed_case(self) -> list[str]:
        """Return the copies with each letter randomly in upper or lower case."""
        return [in_mixed_case(copy, self.draw) for copy in self.copies]


# Makes a document with copies.
Recipe = Callable[[Planting], str]


def insert_in_gaps(text: str, insertions: Sequence[str], gaps: Sequence[int]) -> str:
    """Insert strings between the words of a text.

    Args:
        text: The text.
        insertions: What to insert.
        gaps: Number of words before each insertion.
    """
    words = text.split()
    # The last gap comes first, because an insertion shifts the gaps behind it.
    for gap, insertion in sorted(zip(gaps, insertions, strict=True), reverse=True):
        words.insert(gap, insertion)
    return " ".join(words)


def in_mixed_case(word: str, draw: random.Random) -> str:
    """Return a word with each letter randomly in upper or lower case."""
    letters = [draw.choice((letter.upper(), letter.lower())) for letter in word]
    return "".join(letters)


def spread_evenly(planting: Planting) -> str:
    """Insert the copies at equal distances."""
    copy_count = len(planting.copies)
    distance = len(planting.text.split()) / (copy_count + 1)
    gaps = [round(number * distance) for number in range(1, copy_count + 1)]
    return insert_in_gaps(planting.text, planting.copies, gaps)


def shuffle_with_filler(planting: Planting) -> str:
    """Append the copies and as many copies of a filler, in random order."""
    words = [*planting.copies, *[planting.fillers[0]] * len(planting.copies)]
    planting.draw.shuffle(words)
    return planting.append(" ".join(words))


def append_with_invisible_inside(planting: Planting) -> str:
    """Append the copies, each with an invisible character at a random place in it."""
    changed_copies = []
    for copy in planting.copies:
        position = planting.draw.randint(0, len(copy))
        invisible = planting.draw.choice(INVISIBLE)
        changed_copies.append(copy[:position] + invisible + copy[position:])
    return planting.append(" ".join(changed_copies))


def append_with_accents(planting: Planting) -> str:
    """Append the copies, each followed by a combining accent and, in half of the cases, a space."""
    changed_copies = []
    for copy in planting.copies:
        accent = planting.draw.choice(ACCENTS)
        space = planting.draw.choice(("", " "))
        changed_copies.append(copy + accent + space)
    return planting.append("".join(changed_copies))


def nested_special_recipe(specials: Sequence[str]) -> Recipe:
    """Return a recipe that appends a special token which is nested in itself one to four times."""

    def append_nested_special(planting: Planting) -> str:
        special = planting.draw.choice(specials)
        nested = special
        for _ in range(planting.draw.randint(1, 4)):
            position = planting.draw.randint(1, len(special) - 1)
            nested = special[:position] + nested + special[position:]
        return planting.append(nested)

    return append_nested_special


# Recipes of `shares`, keyed by the names that results have.
RECIPES: dict[str, Recipe] = {
    "prefix": lambda planting: planting.prepend(planting.spaced_copies),
    "suffix": lambda planting: planting.append(planting.spaced_copies),
    "glued suffix": lambda planting: planting.text + "".join(planting.copies),
    "both ends": lambda planting: " ".join([*planting.copies[::2], planting.text, *planting.copies[1::2]]),
    "spread evenly": spread_evenly,
    "spread at random": lambda planting: planting.insert_at_random(planting.copies),
    "with one other word": lambda planting: planting.append(planting.alternate(planting.fillers[:1])),
    "with two others in turn": lambda planting: planting.append(planting.alternate(planting.fillers[:2])),
    "with two others": lambda planting: planting.prepend(
        planting.alternate([" ".join(planting.fillers[:2])])
    ),
    "with ever new words": lambda planting: planting.append(planting.alternate(planting.fillers)),
    "shuffled with another": shuffle_with_filler,
    "in a phrase of four": lambda planting: planting.append(
        planting.alternate([" ".join(planting.fillers[:3])])
    ),
    "mixed case": lambda planting: planting.append(" ".join(planting.in_mixed_case())),
    "mixed case, spread": lambda planting: planting.insert_at_random(planting.in_mixed_case()),
    "punctuation": lambda planting: planting.append(planting.with_separators(PUNCTUATION)),
    "invisible between": lambda planting: planting.append(planting.with_separators(INVISIBLE)),
    "invisible inside": append_with_invisible_inside,
    "full width": lambda planting: planting.prepend(planting.spaced_copies.translate(FULL_WIDTH)),
    "accents between": append_with_accents,
}


def copies_of(words: Sequence[str], draw: random.Random) -> list[str]:
    """Return 4 to 16 copies of a random word."""
    word = draw.choice(words)
    return [word] * draw.randint(4, 16)


def ordinary_words(run: Run) -> list[str]:
    """Return the words of the vocabulary that consist of at least two ASCII letters."""
    vocabulary = run.vocabulary.filter(pl.col("category") == "OK")["token"]
    return [word for word in vocabulary if word.isalpha() and word.isascii() and len(word) > 1]


def shares(
    run: RunFolder,
    corpus: Annotated[list[Path], typer.Option(help="File with a text on each line; may be repeated.")],
    planted: Annotated[
        Path | None, typer.Option(help="A planted.json; its words count as flagged, too.")
    ] = None,
    documents: Annotated[int, typer.Option(help="Documents per recipe, corpus and kind of word.")] = 200,
) -> None:
    """Measure how many documents with copies are found, for many ways of inserting copies.

    Each recipe inserts 4 to 16 copies of a word into random texts of each corpus: once copies of flagged
    words, and once copies of other words of the vocabulary. Also counts the unchanged texts of each corpus
    that are flagged, and those that cleaning changes.
    """
    opened_run = open_run(run)
    rules = Cleaner.from_run(opened_run).rules
    if planted is not None:
        planted_words = [row["token"] for row in planted_rows(planted)]
        rules = rules.extended(planted_words)
    cleaner = Cleaner(rules, unsafe_fixes=True)
    other_words = ordinary_words(opened_run)
    corpora = {path.stem: nonempty_lines(path) for path in corpus}
    results = Results("cleaning_shares", documents=documents)
    for name, texts in corpora.items():
        flagged_count = sum(bool(find_spans(text, rules)) for text in texts)
        changed_count = sum(Cleaner(rules)(text) != text for text in texts)
        unsafe_count = sum(cleaner(text) != text for text in texts)
        counts = f"{flagged_count} found, {changed_count} changed, {unsafe_count} by unsafe fixes"
        results.check(f"{name}, {len(texts):,} texts", "shown", counts)

    unsettled_count = 0
    recipes = {**RECIPES, "nested special token": nested_special_recipe(rules.specials)}
    for recipe_name, recipe in recipes.items():
        shares_found = {}
        for name, texts in corpora.items():
            for kind, words in (("flagged", rules.words), ("other", other_words)):
                draw = random.Random(f"{SEED} {recipe_name} {name} {kind == 'other'}")
                planted_texts = [
                    plant_in_random_text(recipe, words, texts, other_words, draw) for _ in range(documents)
                ]
                found_count = sum(bool(find_spans(text, rules)) for text in planted_texts)
                unsettled_count += sum(changes_twice(cleaner, text) for text in planted_texts)
                shares_found[f"{name}, {kind}"] = found_count / documents
        summary = "; ".join(f"{cell} {share:.3f}" for cell, share in shares_found.items())
        results.check(recipe_name, "shown", summary, shares=shares_found)
    results.check("texts that cleaning did not settle", "0", str(unsettled_count), unsettled_count == 0)
    results.finish(strict=False)


def nonempty_lines(path: Path) -> list[str]:
    """Return the lines of a file that are not blank."""
    return [line for line in path.read_text("utf-8").splitlines() if line.strip()]


def plant_in_random_text(
    recipe: Recipe,
    words: Sequence[str],
    texts: Sequence[str],
    other_words: Sequence[str],
    draw: random.Random,
) -> str:
    """Return a random text with copies of a random word.

    Args:
        recipe: How to insert the copies.
        words: Words of which one is copied.
        texts: Texts of which one gets the copies.
        other_words: Words of which some may be inserted between the copies.
        draw: Random generator.
    """
    copies = copies_of(words, draw)
    text = draw.choice(texts)
    fillers = draw.sample(other_words, FILLER_WORDS)
    return recipe(Planting(text, copies, fillers, draw))


def changes_twice(cleaner: Cleaner, text: str) -> bool:
    """Return whether cleaning a cleaned text changes it again."""
    cleaned = cleaner(text)
    return cleaner(cleaned) != cleaned


class HotFlip:
    """Gradient search for tokens that pull a text toward a target vector.

    It appends random tokens to the text, and then replaces one of them at a time: the gradient of the
    similarity to the target tells which tokens promise the largest rise, and the best of these is taken
    (Ebrahimi et al., ACL 2018; for retrieval, Zhong et al., EMNLP 2023). `HOTFLIP` has the settings.

    Args:
        model: A SentenceTransformer with mean pooling, whose tokenizer adds [CLS] and [SEP].
    """

    def __init__(self, model: Any) -> None:
        self.tokenizer = model.tokenizer
        self.generator = np.random.default_rng(SEED)
        # The transformer within the SentenceTransformer, which can start from embeddings instead of ids.
        self.backbone = next(module for module in model.modules() if hasattr(module, "get_input_embeddings"))
        self.embeddings = self.backbone.get_input_embeddings().weight.detach()
        entries = self.tokenizer.convert_ids_to_tokens(range(len(self.tokenizer)))
        # Word pieces such as ##ing are not usable: as text, they would join the word before them.
        self.is_usable = torch.tensor([entry.isascii() and entry.isalpha() for entry in entries])

    def optimise(self, text: str, target: torch.Tensor) -> str:
        """Return a text with appended tokens that pull it toward a target vector, shape (d,)."""
        appended_count = HOTFLIP["length"]
        content = self.tokenizer(
            text, add_special_tokens=False, truncation=True, max_length=OPTIMISED_TOKENS
        )["input_ids"]
        usable_ids = self.is_usable.nonzero().flatten().numpy()
        appended = self.generator.choice(usable_ids, appended_count).tolist()
        with torch.no_grad():
            best_similarity = self._similarities(self._embed([content + appended]), target)[0]
        for _ in range(HOTFLIP["steps"]):
            position = int(self.generator.integers(appended_count))
            gradient = self._gradient(content + appended, target)
            # Counted from the end, because [SEP] is behind the appended tokens.
            position_from_end = position - appended_count - 1
            expected_rises = self.embeddings @ gradient[position_from_end]
            expected_rises = expected_rises.masked_fill(~self.is_usable, -torch.inf)
            candidates = [
                [*appended[:position], int(token_id), *appended[position + 1 :]]
                for token_id in expected_rises.topk(HOTFLIP["candidates"]).indices
            ]
            with torch.no_grad():
                vectors = self._embed([content + candidate for candidate in candidates])
                similarities = self._similarities(vectors, target)
            if similarities.max() > best_similarity:
                best_similarity = similarities.max()
                appended = candidates[int(similarities.argmax())]
        return f"{text} {self.tokenizer.decode(appended)}"

    def _embed(self, contents: list[list[int]]) -> torch.Tensor:
        """Return the token embeddings of texts of equal length, with [CLS] and [SEP], shape (N, L, d)."""
        first_id = self.tokenizer.cls_token_id
        last_id = self.tokenizer.sep_token_id
        ids = torch.tensor([[first_id, *content, last_id] for content in contents])
        embedded: torch.Tensor = self.embeddings[ids]
        return embedded

    def _similarities(self, embedded: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """Return the cosine similarities of N texts to a unit vector, shape (N,)."""
        states = self.backbone(inputs_embeds=embedded).last_hidden_state.mean(1)
        return torch.nn.functional.normalize(states, dim=1) @ target

    def _gradient(self, content: list[int], target: torch.Tensor) -> torch.Tensor:
        """Return the gradient of a text's similarity to the target, shape (L, d), for each embedding."""
        embedded = self._embed([content]).clone().requires_grad_()
        (gradient,) = torch.autograd.grad(self._similarities(embedded, target).sum(), embedded)
        return gradient[0]


def adversarial(
    run: RunFolder,
    cranfield: CranfieldFolder,
    documents: Annotated[int, typer.Option(help="Number of optimised documents.")] = 20,
) -> None:
    """Count the documents that are found if a gradient search has optimised them.

    The queries are divided into groups of similar queries, and one document is pulled toward the mean of each
    group: HotFlip appends tokens to it, and replaces one at a time by the token whose gradient promises the
    most (Ebrahimi et al., ACL 2018; for retrieval, Zhong et al., EMNLP 2023). The model is all-MiniLM-L6-v2;
    RUN provides only the rules.
    """
    from sklearn.cluster import KMeans

    encoder: Any = load_encoder(MINILM, device="cpu")
    rules = rules_of_run(open_run(run))
    corpus = [row["text"] for row in json_lines(cranfield / "corpus.jsonl")]
    queries = encoder.encode([row["text"] for row in json_lines(cranfield / "queries.jsonl")])
    texts = [first_words(text, DOCUMENT_WORDS) for text in corpus if text.strip()]
    group_of_query = KMeans(documents, random_state=SEED, n_init=4).fit_predict(queries)
    # A document that is closer to a query than this is among its results.
    result_limits = np.sort(queries @ encoder.encode(texts).T, axis=1)[:, -TOP]
    chosen_numbers = np.random.default_rng(SEED).choice(len(texts), documents, replace=False)
    attack = HotFlip(encoder.model)
    rows: list[dict[str, Any]] = []
    for group, number in enumerate(chosen_numbers):
        group_queries = queries[group_of_query == group]
        group_limits = result_limits[group_of_query == group]
        document = first_words(texts[number], OPTIMISED_WORDS)
        optimised = attack.optimise(document, torch.from_numpy(group_queries.mean(0)))
        similarities = group_queries @ encoder.encode([document, optimised]).T
        before = similarities[:, 0]
        after = similarities[:, 1]
        row = {
            "text": optimised,
            "queries": len(group_queries),
            "before": float(before.mean()),
            "after": float(after.mean()),
            "top_before": float((before > group_limits).mean()),
            "top_after": float((after > group_limits).mean()),
            "found": sorted({span.kind.value for span in find_spans(optimised, rules)}),
        }
        rows.append(row)
        print(f"{group + 1}: {row['before']:.3f} -> {row['after']:.3f}, {row['found']}", flush=True)
    report_adversarial(rows)


def report_adversarial(rows: list[dict[str, Any]]) -> None:
    """Write and print the results of `adversarial`, from one row per optimised document."""
    table = pl.DataFrame(rows)
    similarity = {}
    top = {}
    for moment in ("before", "after"):
        similarity[moment] = table[moment].mean()
        top[moment] = np.average(table[f"top_{moment}"], weights=table["queries"]).item()
    found_count = sum(bool(row["found"]) for row in rows)
    write_json(
        "adversarial_documents",
        settings=HOTFLIP,
        documents=len(rows),
        found=found_count,
        similarity=similarity,
        top=top,
        made=rows,
    )
    top_shares = f"{top['before']:.0%} of their queries before, {top['after']:.0%} after"
    print(f"{found_count} of {len(rows)} found; among the first {TOP} for {top_shares}")


def first_words(text: str, count: int) -> str:
    """Return the first words of a text."""
    return " ".join(text.split()[:count])


# Tokenizers of `restored`: real ones, by the folder of the project that has them, and two normalisers.
REAL_TOKENIZERS = ("t5", "roberta-base")
COPY_COUNTS = (4, 8, 16, 32)
# Share of the texts whose copies are all in one place.
CLUSTERED_SHARE = 0.3


def packaged_tokenizer() -> Tokenizer:
    """Return the tokenizer of the packaged model."""
    return Tokenizer.from_file(str(Path(resolve_model(MINILM).location) / "tokenizer.json"))


def tokenizers_to_try() -> dict[str, Tokenizer]:
    """Return tokenizers with different normalisers, keyed by name."""
    tokenizers = {MINILM: packaged_tokenizer()}
    for name in REAL_TOKENIZERS:
        path = SHARED / "tokenizers" / name / "tokenizer.json"
        tokenizers[name] = Tokenizer.from_file(str(path))
    for name, normalizer in (
        ("NFKC", normalizers.NFKC()),
        ("cased BERT", normalizers.BertNormalizer(lowercase=False)),
    ):
        # The vocabulary of the packaged model, read by another normaliser.
        tokenizer = packaged_tokenizer()
        tokenizer.normalizer = normalizer
        tokenizers[name] = tokenizer
    return tokenizers


def restored(
    cranfield: CranfieldFolder,
    examples: Annotated[int, typer.Option(help="Number of texts with copies.")] = 10_000,
) -> None:
    """Check that cleaning removes nothing but copies, for tokenizers with different normalisers.

    Copies of a random vocabulary entry are inserted between the words of a text: at random places or, in
    three of ten texts, all at one place. A text is damaged if any other word is missing after cleaning.
    """
    texts, _ = retrieval_set(cranfield)
    results = Results("cleaning_restored", examples=examples)
    tokenizers = tokenizers_to_try()
    for name, tokenizer in tokenizers.items():
        normalizer = HuggingFaceTokenizer(tokenizer).normalizer
        decoded = (tokenizer.decode([token_id]).strip() for token_id in range(tokenizer.get_vocab_size()))
        words = sorted({text for text in decoded if len(text.split()) == 1 and "\ufffd" not in text})
        counts = count_restored(words, texts, normalizer, examples // len(tokenizers), random.Random(SEED))
        for fixes in ("safe", "unsafe"):
            damaged = counts[f"damaged by {fixes} fixes"]
            title = f"{name}: texts damaged by {fixes} fixes"
            results.check(title, "0", f"{damaged} of {counts['texts']:,}", damaged == 0)
        for count in COPY_COUNTS:
            restored_count = counts[f"{count} copies, restored by unsafe fixes"]
            results.check(
                f"{name}, {count} copies: restored by unsafe fixes",
                "shown",
                f"{restored_count / max(1, counts[f'{count} copies']):.1%}",
            )
    results.finish(strict=False)


def count_restored(
    words: Sequence[str], texts: Sequence[str], normalizer: str | None, examples: int, draw: random.Random
) -> Counter[str]:
    """Insert copies of random words into random texts, clean the texts, and count what became of them."""
    counts: Counter[str] = Counter()
    while counts["texts"] < examples:
        text = draw.choice(texts)
        word = draw.choice(words)
        rules = CleaningRules(words=(word,), specials=(), normalizer=normalizer)
        # Copies that the text had before, and its own repetitions, would be removed as well.
        if word.casefold() in text.casefold() or find_spans(text, rules):
            continue
        copy_count = draw.choice(COPY_COUNTS)
        gap_count = len(text.split(" "))
        gaps = [draw.randint(0, gap_count) for _ in range(copy_count)]
        if draw.random() < CLUSTERED_SHARE:
            gaps = gaps[:1] * copy_count
        planted_text = insert_in_gaps(text, [word] * copy_count, gaps)
        counts["texts"] += 1
        counts[f"{copy_count} copies"] += 1
        for fixes in ("safe", "unsafe"):
            cleaned = Cleaner(rules, unsafe_fixes=fixes == "unsafe")(planted_text).split()
            others = [part for part in cleaned if part != word]
            counts[f"damaged by {fixes} fixes"] += others != text.split()
            counts[f"{copy_count} copies, restored by {fixes} fixes"] += cleaned == text.split()
    return counts


def structure(
    documents: Annotated[int, typer.Option(help="Number of documents.")] = 500,
) -> None:
    """Check that documents in which words repeat because of the form come out of cleaning unchanged.

    The documents are tables, logs, code, forms, poems and addresses; see `structured_documents.py`. They are
    cleaned with foreign letters as flagged words, and again with the words that fill their cells.
    """
    texts = structured_documents(documents)
    normalizer = HuggingFaceTokenizer(packaged_tokenizer()).normalizer
    foreign = CleaningRules(words=FOREIGN_WORDS, normalizer=normalizer)
    ordinary = CleaningRules(words=(*FOREIGN_WORDS, *STATES, *NAMES), normalizer=normalizer)
    draw = random.Random(SEED)
    results = Results("cleaning_structure", documents=documents)
    for title, bar, cleaner in (
        ("foreign flagged words: documents changed", "0", Cleaner(foreign)),
        ("the same, by unsafe fixes", "0", Cleaner(foreign, unsafe_fixes=True)),
        ("words of the cells flagged: documents changed", "0", Cleaner(ordinary)),
        ("the same, by unsafe fixes", "shown", Cleaner(ordinary, unsafe_fixes=True)),
    ):
        changed = sum(cleaner(text) != text for text in texts)
        results.check(title, bar, f"{changed} of {documents}", bar == "shown" or changed == 0)
    restored_count = 0
    for text in texts:
        cleaned = Cleaner(foreign)(with_copies(text, FOREIGN_WORDS, draw))
        restored_count += cleaned.split() == text.split()
    title = "documents restored, with a line of eight copies in them"
    results.check(title, str(documents), str(restored_count), restored_count == documents)
    results.finish(strict=False)


def latency(
    cranfield: Annotated[Path, typer.Argument(help="Retrieval set in the layout of BEIR.")],
    run: Annotated[Path, typer.Argument(help="Finished run.")],
) -> None:
    """Measure how long the verdict on one document takes, in milliseconds of one core.

    A third of the documents gets eight copies of a flagged token, and another third a special token.
    """
    cleaner = Cleaner.from_run(run)
    words = [*cleaner.rules.words[:1], *cleaner.rules.specials[:1]]
    texts, _ = retrieval_set(cranfield)
    cleaner.clean(texts[0])  # builds what all documents share
    milliseconds = []
    for number, text in enumerate(texts):
        copies = " ".join(words[number % 3 : number % 3 + 1] * 8)
        began = time.perf_counter()
        cleaner.clean(f"{copies} {text}")
        milliseconds.append(1000 * (time.perf_counter() - began))
    results = Results("cleaning_latency", documents=len(texts))
    for percentile in (50, 99):
        value = float(np.percentile(milliseconds, percentile))
        results.check(f"milliseconds for one document, p{percentile}", "shown", f"{value:.2f}", value=value)
    results.finish(strict=False)


if __name__ == "__main__":
    commands(__doc__, shares, adversarial, restored, structure, latency)
