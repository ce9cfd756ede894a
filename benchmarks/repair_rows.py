"""Which strategy for new rows is best? Planted rows are repaired, and compared with the rows that were there.

python benchmarks/repair_rows.py PLANTED ORIGINAL --count 10    # one minute of CPU for MiniLM
python benchmarks/repair_rows.py PLANTED ORIGINAL --strategies relatives,pieces
python benchmarks/repair_rows.py ORIGINAL ORIGINAL --tokens about,its
python benchmarks/repair_rows.py ORIGINAL ORIGINAL --sample 150 --strategies relatives,pieces

PLANTED is a model folder with a planted.json (a list of {"token_id": ...}); ORIGINAL is the model before. The
repair sees the planted model alone. A row is judged in the original model, in place of the true row: the lift
of 8 copies behind carriers, in standard deviations of the similarities; and the Spearman correlation between
similarities to a panel of texts of a text with the word, and of the same text with the true row. Two rows of
the table are no repair: the planted row, and the word left out. "unreachable" is no row: the pieces of the
word stand in its place. With --tokens or --sample, words of ORIGINAL are repaired, and the true rows are the
rows that they have: the table shows what a repair takes from a natural word.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer

from stickytoken.corpora import load_sentences, text_kinds
from stickytoken.encoders import IdEncoder, load_encoder
from stickytoken.encoders.loading.resolution import resolve_model
from stickytoken.repairs.plan import RowContext, pieces_of
from stickytoken.repairs.result import ROWS, Strategy
from stickytoken.repairs.rows import new_rows
from stickytoken.unit_vectors import unit_vectors

CARRIERS, CONTEXTS, PANEL, COPIES, LONGEST = 10, 8, 300, 8, 24
CLOSE = 0.15


def main() -> None:
    """Repair, judge, show."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("planted", type=Path)
    parser.add_argument("original")
    parser.add_argument("--tokens", help="words, separated by commas; PLANTED is then ORIGINAL")
    parser.add_argument("--sample", type=int, help="repair so many random words of ORIGINAL")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--strategies", default=",".join(ROWS))
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    planted = opened(str(given.planted))
    ids = given.tokens and planted.tokenizer.convert_tokens_to_ids(given.tokens.split(","))
    if given.sample:
        ids = some_words(planted.tokenizer, given.sample, given.seed)
    if not ids:
        entries = json.loads((given.planted / "planted.json").read_text("utf-8"))
        every = [entry["token_id"] for entry in entries]
        ids = np.random.default_rng(given.seed).permutation(every)[: given.count].tolist()
    rows: dict[str, Any] = {"planted": dict(zip(ids, table_of(planted)[ids].numpy(), strict=True))}
    seconds = {}
    # The texts of the panel are others: those of the kinds.
    texts = list(load_sentences(None).texts)
    for strategy in map(Strategy, given.strategies.split(",")):
        begun = time.process_time()
        rows[strategy.value] = new_rows(strategy, ids, RowContext(planted, texts, given.seed))
        seconds[strategy.value] = time.process_time() - begun
    results = judged(opened(given.original), ids, rows, given.seed)
    for name, result in results.items():
        result["cpu_seconds_per_token"] = seconds[name] / len(ids) if name in seconds else None
    print(as_table(results))
    if given.out:
        settings = {"planted": given.planted.name, "tokens": len(ids), "seed": given.seed}
        given.out.write_text(json.dumps({**settings, "results": results}, indent=1) + "\n", encoding="utf-8")


def some_words(tokenizer: Any, count: int, seed: int) -> list[int]:
    """Draw whole words that fall into pieces."""
    vocabulary = tokenizer.get_vocab()
    words = sorted(k for word, k in vocabulary.items() if word.isascii() and word.isalpha() and len(word) > 2)
    drawn: list[int] = np.random.default_rng(seed).permutation(words)[:count].tolist()
    return [token_id for token_id, own in pieces_of(tokenizer.backend_tokenizer, drawn).items() if own]


def opened(name: str) -> SentenceTransformer:
    return SentenceTransformer(resolve_model(name).location, device="cpu", local_files_only=True)


def table_of(model: Any) -> torch.Tensor:
    weight: torch.Tensor = model[0].auto_model.get_input_embeddings().weight.detach()
    return weight


def judged(model: SentenceTransformer, ids: list[int], rows: dict[str, Any], seed: int) -> dict[str, Any]:
    """Put every row in place of the true one, and compare what texts with it do."""
    encoder, table = load_encoder(model), table_of(model)
    texts = [
        text
        for text, content in zip(texts_of_kinds(), encoder.content_ids(texts_of_kinds()), strict=True)
        if len(content) <= LONGEST and set(ids).isdisjoint(content)
    ]
    generator = np.random.default_rng(seed)
    drawn = [texts[k] for k in generator.permutation(len(texts))[: CARRIERS + CONTEXTS + PANEL]]
    contents = [tuple(content) for content in encoder.content_ids(drawn)]
    carriers, contexts = contents[:CARRIERS], contents[CARRIERS : CARRIERS + CONTEXTS]
    panel = unit_vectors(encoder.encode_ids(contents[CARRIERS + CONTEXTS :]))
    gaps = [int(generator.integers(len(content) + 1)) for content in contexts]
    before = similarities(encoder, carriers, panel)
    low, spread = before < before.mean(), float(before.std())

    def read(entries: list[tuple[int, ...]]) -> tuple[NDArray[Any], NDArray[Any]]:
        many = [(*content, *entry * COPIES) for entry in entries for content in carriers]
        risen = similarities(encoder, many, panel).reshape(len(ids), *before.shape) - before
        lifts = (risen * low).sum(axis=(1, 2)) / low.sum() / spread
        placed = zip(contexts, gaps, strict=True)
        words = [(*content[:gap], *entry, *content[gap:]) for content, gap in placed for entry in entries]
        words += entries
        return lifts, similarities(encoder, words, panel).reshape(len(contexts) + 1, len(ids), -1)

    own: list[tuple[int, ...]] = [(token_id,) for token_id in ids]
    true_lifts, true = read(own)
    plain = np.repeat(similarities(encoder, contexts, panel)[:, None], len(ids), axis=1)
    results = {"word left out": {"agreement": medians(plain, true[:-1])}}
    pieces = pieces_of(model.tokenizer.backend_tokenizer, ids)
    kept = table[ids].clone()
    for name in (*rows, Strategy.UNREACHABLE.value):
        if name in rows:
            table[ids] = torch.from_numpy(np.stack([rows[name][token_id] for token_id in ids]))
            lifts, found = read(own)
            table[ids] = kept
        else:
            lifts, found = read([pieces[token_id] or (token_id,) for token_id in ids])
        off = lifts - true_lifts
        results[name] = {
            "lift": float(np.median(lifts)),
            "true_lift": float(np.median(true_lifts)),
            "median_difference": float(np.median(np.abs(off))),
            "largest_difference": float(np.abs(off).max()),
            "close": int((np.abs(off) <= CLOSE).sum()),
            "tokens": len(ids),
            "agreement": medians(found[:-1], true[:-1]),
            "agreement_alone": medians(found[-1:], true[-1:]),
        }
    return results


def texts_of_kinds() -> list[str]:
    return list(text_kinds().texts)


def similarities(
    encoder: IdEncoder, contents: list[tuple[int, ...]], panel: NDArray[np.float32]
) -> NDArray[np.float32]:
    found: NDArray[np.float32] = unit_vectors(encoder.encode_ids(contents)) @ panel.T
    return found


def medians(found: NDArray[Any], true: NDArray[Any]) -> float:
    """Median agreement over contexts and words."""
    pairs = zip(found.reshape(-1, found.shape[-1]), true.reshape(-1, true.shape[-1]), strict=True)
    return float(np.median([spearmanr(one, other).statistic for one, other in pairs]))


def as_table(results: dict[str, Any]) -> str:
    lines = [
        "| row | lift, sd | largest difference from the true row's | within 0.15 sd | agreement in a text | "
        "agreement of the word alone | CPU s a token |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, each in results.items():
        if "lift" not in each:
            lines.append(f"| {name} | - | - | - | {each['agreement']:.3f} | - | - |")
            continue
        cost = each["cpu_seconds_per_token"]
        lines.append(
            f"| {name} | {each['lift']:.2f} | {each['largest_difference']:.2f} | {each['close']} of "
            f"{each['tokens']} | {each['agreement']:.3f} | {each['agreement_alone']:.2f} | "
            f"{'-' if cost is None else f'{cost:.1f}'} |"
        )
    true = next(each["true_lift"] for each in results.values() if "lift" in each)
    return "\n".join([*lines, "", f"Median lift of the true rows: {true:.2f} sd."])


if __name__ == "__main__":
    main()
