"""What does a repair of planted rows do to a clean score? The true rows show what a perfect repair would do.

python benchmarks/repair_scores.py PLANTED ORIGINAL --pairs sts.jsonl --run RUN

PLANTED is a model folder with planted.json, ORIGINAL the model before planting, RUN a finished run of
PLANTED. The score is the Spearman correlation of cosines with the column ``score``, in points. Only texts
with a planted entry are encoded by the changed models; all others have the vectors of ORIGINAL.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from checks import Check, show, write
from stickytoken.detection import open_run
from stickytoken.encoders import load_encoder
from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder
from stickytoken.inspection.module_embedding import input_embeddings
from stickytoken.repairs.model_folder import ModelEdit, write_model
from stickytoken.repairs.plan import RowContext
from stickytoken.repairs.result import Strategy
from stickytoken.repairs.rows import new_rows
from stickytoken.repairs.tokenizer_edit import TokenizerEdit, splittable

_SEED = 4242


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("planted", type=Path)
    parser.add_argument("original")
    parser.add_argument("--pairs", type=Path, required=True, help="jsonl with sentence1, sentence2, score")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--name", help="write the results to benchmarks/results/NAME.json")
    return parser.parse_args()


class Scores:
    """Scores of changed models on pairs of texts.

    Args:
        original: the model before planting.
        pairs: jsonl file.
        planted: ids of the planted entries.
    """

    def __init__(self, original: SentenceTransformerEncoder, pairs: Path, planted: Collection[int]) -> None:
        rows = [json.loads(line) for line in pairs.read_text("utf-8").splitlines()]
        firsts, seconds = ([row[name] for row in rows] for name in ("sentence1", "sentence2"))
        self.texts = list(dict.fromkeys([*firsts, *seconds]))
        place = {text: k for k, text in enumerate(self.texts)}
        self._pairs = [[place[text] for text in side] for side in (firsts, seconds)]
        self._gold = [row["score"] for row in rows]
        ids = original.content_ids(self.texts)
        self.held = [k for k, own in enumerate(ids) if not set(planted).isdisjoint(own)]
        self._vectors = original.encode(self.texts)

    def of(self, model: SentenceTransformerEncoder | None) -> float:
        """Score a model whose other texts have the original's vectors; None scores the original."""
        vectors = self._vectors.astype(np.float64)
        if model is not None and self.held:
            vectors[self.held] = model.encode([self.texts[k] for k in self.held])
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        first, second = (vectors[side] for side in self._pairs)
        return float(100 * spearmanr((first * second).sum(axis=1), self._gold).statistic)


def edits(
    planted: SentenceTransformerEncoder, true: np.ndarray, ids: list[int], source: Path, texts: list[str]
) -> Mapping[str, ModelEdit]:
    """The repairs that are compared; entries that cannot be split keep their planted row but in the last."""
    able = [token_id for token_id, reason in splittable(source, ids).items() if reason is None]
    context = RowContext(planted.model, texts, _SEED)
    return {
        "unreachable": ModelEdit(tokenizer=TokenizerEdit(unreachable=tuple(able))),
        "relatives": ModelEdit(rows=new_rows(Strategy.RELATIVES, able, context)),
        "pieces": ModelEdit(rows=new_rows(Strategy.PIECES, able, context)),
        "true rows": ModelEdit(rows={token_id: true[token_id] for token_id in ids}),
    }


def main() -> None:
    given = arguments()
    original, planted = load_encoder(given.original), load_encoder(given.planted)
    if not isinstance(original, SentenceTransformerEncoder) or not isinstance(
        planted, SentenceTransformerEncoder
    ):
        raise SystemExit("both models must be SentenceTransformers")
    run = open_run(given.run)
    every = [
        int(each["token_id"]) for each in json.loads((given.planted / "planted.json").read_text("utf-8"))
    ]
    scores = Scores(original, given.pairs, every)
    before, present = scores.of(None), scores.of(planted)
    found = [
        Check("before planting", "-", f"{before:.2f}", True, {"score": before}),
        Check("planted", "-", f"{present:.2f}", True, {"score": present, "texts": len(scores.held)}),
    ]
    true = input_embeddings(original.model).weight.detach().float().numpy()
    used = run.method.texts(run.plan)
    texts = [*used.carriers, *used.anchors]
    with tempfile.TemporaryDirectory() as place:
        for which, ids in (("the sticky ones", run.sticky["token_id"].to_list()), ("all", every)):
            for name, edit in edits(planted, true, ids, given.planted, texts).items():
                folder = Path(place) / f"{which} {name}"
                write_model(given.planted, folder, edit)
                model = load_encoder(folder)
                score = scores.of(model if isinstance(model, SentenceTransformerEncoder) else None)
                said = f"{score:.2f} ({score - present:+.2f}; from before planting {score - before:+.2f})"
                found.append(Check(f"{which} ({len(ids)}), {name}", "-", said, True, {"score": score}))
    title = f"{given.planted.name}, {given.pairs.stem}"
    show(found, title)
    if given.name:
        write(found, given.name, "cpu", command=title)


if __name__ == "__main__":
    main()
