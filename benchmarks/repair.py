"""Does a repair keep its promises? The unplanted model is the truth that planted tokens are judged by.

RUN is a finished run of the planted (or a real) model, PLANTED a model folder with a planted.json, ORIGINAL
and --truth the model before planting.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

import stickytoken
from bench import Results, commands, json_lines, refuse, spearman, units, write_json
from models import plain_model, planted_ids
from stickytoken.cli.console import progress_bar
from stickytoken.data import load_sentences, text_kinds
from stickytoken.data.sentences import bundled_sentences
from stickytoken.detection import Run, open_run
from stickytoken.detection.run import encoder_for, restored_settings
from stickytoken.encoders import Encoder, load_encoder
from stickytoken.encoders.protocol import require_ids
from stickytoken.insertion import Token
from stickytoken.inspection.module_embedding import input_embeddings
from stickytoken.measurement.engine import ignore_progress
from stickytoken.methods.job import RecheckJob, Tokens
from stickytoken.methods.profile.anchors import ProfilePlanRecord, ProfileSettings
from stickytoken.methods.profile.verdict import recheck
from stickytoken.repairs import Repair
from stickytoken.repairs.model_folder import ModelEdit, write_model
from stickytoken.repairs.result import ROWS, Strategy
from stickytoken.repairs.rows import RowContext, new_rows, pieces_of
from stickytoken.repairs.tokenizer_edit import TokenizerEdit, splittable
from stickytoken.unit_vectors import unit_vectors
from stickytoken.validation import markdown_table
from stickytoken.vocabulary import categorize

CLOSE, AGREEMENT, CLS, MINUTES, POINTS = 0.15, 0.85, 0.45, 5.0, 0.05


def promises(
    run: Path,
    truth: str | None = None,
    planted: Path | None = None,
    tokens: list[str] | None = None,
    strategy: str = "auto",
    task: str | None = None,
    name: str = "repair",
) -> None:
    """Repair --tokens, those of --planted, or the sticky ones, and check on texts the run has not used.

    Measured with another seed: the verdicts of the second detection, and the lifts of the repaired tokens
    against the true rows'; rank agreement, the Spearman correlation between similarities to a panel of texts
    of a text with the word in the repaired model and in the true one, median over texts, then over tokens;
    the vectors of texts without a repaired token; the score of the task; the time.
    """
    opened, chosen = open_run(run), planted_ids(planted) if planted else tokens
    results = Results(name)
    with tempfile.TemporaryDirectory() as place, progress_bar() as progress:
        started, processor = time.perf_counter(), sum(os.times()[:4])
        out = Path(place) / "repaired"
        repair = stickytoken.repair(opened, chosen, out=out, strategy=strategy, task=task, progress=progress)
        computing = sum(os.times()[:4]) - processor
        seconds = max(repair.record.seconds, time.perf_counter() - started)
        check_repair(results, repair, seconds, computing)
        if truth is not None:
            check_truth(results, repair, opened, load_encoder(truth))
    results.finish(strict=False)


def check_repair(results: Results, repair: Repair, seconds: float, computing: float) -> None:
    verification = repair.record.verification
    if verification is None:
        refuse("the repair was not verified")
    rows = repair.tokens.to_dicts()
    sticky = [row["token"] for row in rows if row["verdict_after"] == "sticky"]
    results.check("tokens still sticky", "0", f"{len(sticky)} of {len(rows)}", not sticky, sticky=sticky)
    before, after = ([row[f"deviations_{side}"] for row in rows] for side in ("before", "after"))
    ours = f"median {np.median(after):.2f}, at most {max(after):.2f} SD (before: at most {max(before):.2f})"
    results.check("lift after, beyond an ordinary token's", "-", ours, tokens=rows)
    for score in verification.scores[:1]:
        change = 100 * (score.after - score.before)
        results.check(
            f"{score.task}, {score.metric}",
            f"change at most {POINTS} points",
            f"{100 * score.before:.2f} before, {100 * score.after:.2f} after",
            abs(change) <= POINTS,
            change=change,
        )
    ours = f"{seconds:.0f} s for {len(rows)}, {computing:.0f} s of them on a processor"
    results.check("time", f"{MINUTES:g} minutes for 20 tokens", ours, seconds <= 60 * MINUTES)
    for each in verification.checks:
        results.check(each.name, "holds", each.finding, each.passed)
    if [row["token"] for row in rows] == ["[CLS]"]:
        lift = rows[0]["lift_after"] / verification.similarity_spread
        results.check("[CLS] through text", f"at most {CLS} SD", f"{lift:.2f} SD", lift <= CLS)


def check_truth(results: Results, repair: Repair, run: Run, truth: Encoder) -> None:
    # Lifts of the tokens in the true model, on the texts of the verification, in its deviations.
    plan, settings = run.plan_of(ProfilePlanRecord), restored_settings(run)
    if not isinstance(settings, ProfileSettings):
        refuse("the run must be of the method profile")
    model = require_ids(encoder_for(None, run, "benchmark"), "benchmark")
    used = [*plan.carriers, *(anchor.text for anchor in plan.anchors)]
    vocabulary, seed = categorize(model.tokenizer), repair.record.settings["seed"]
    job = RecheckJob(
        model, vocabulary, bundled_sentences(), plan, used, settings, seed, True, ignore_progress
    )
    again = recheck(job, "again").of_model(require_ids(truth, "benchmark"), vocabulary, "again")
    tokens = [Token(token.token_id, token.text) for token in repair.record.tokens]
    found = again.judged(Tokens(tokens, [], []), ())
    true = {
        token.id: (found.lifts[token.id] - found.ordinary_lift) / again.similarity_spread for token in tokens
    }
    away = [abs(row["deviations_after"] - true[row["token_id"]]) for row in repair.tokens.to_dicts()]
    close = sum(each <= CLOSE for each in away)
    results.check(
        "lift against the true row's",
        f"each within {CLOSE} SD",
        f"median {np.median(away):.2f}, at most {max(away):.2f}; {close} of {len(away)} within",
        max(away) <= CLOSE,
        away=away,
    )
    words = [token.text.strip() for token in repair.record.tokens]
    before, after = (
        agreements(truth, load_encoder(place), words) for place in (run.record.model.name, repair.path)
    )
    results.check(
        "rank agreement with the true word",
        f"median at least {AGREEMENT}",
        f"{np.median(after):.2f} (before the repair: {np.median(before):.2f})",
        np.median(after) >= AGREEMENT,
        after=after,
        before=before,
    )


def agreements(truth: Encoder, other: Encoder, words: list[str]) -> list[float]:
    """Rank agreement of each word with the true model, median over contexts with it in their middle."""
    texts = [*text_kinds().texts, *bundled_sentences().texts]
    drawn = [texts[k] for k in np.random.default_rng(17).permutation(len(texts))[:312]]
    panel, contexts = drawn[:300], [text.split() for text in drawn[300:]]
    placed = [
        " ".join([*parts[: len(parts) // 2], word, *parts[len(parts) // 2 :]])
        for word in words
        for parts in contexts
    ]
    true, found = (units(each.encode(placed)) @ units(each.encode(panel)).T for each in (truth, other))
    ranks = [spearman(a, b) for a, b in zip(true, found, strict=True)]
    return list(np.median(np.reshape(ranks, (len(words), len(contexts))), axis=1).tolist())


CARRIERS, CONTEXTS, PANEL, COPIES, LONGEST = 10, 8, 300, 8, 24
COLUMNS = (
    "row",
    "lift, sd",
    "largest difference from the true row's",
    "within 0.15 sd",
    "agreement in a text",
    "agreement of the word alone",
    "CPU s a token",
)


def rows(
    planted: Path,
    original: str,
    tokens: str | None = None,
    count: int = 10,
    strategies: str = ",".join(ROWS),
    seed: int = 7,
    name: str | None = None,
) -> None:
    """Which strategy for new rows is best? Planted rows are repaired, and compared with those before.

    The repair sees the planted model alone. A row is judged in the original model, in place of the true row:
    the lift of 8 copies behind carriers, in standard deviations of the similarities; and the Spearman
    correlation between similarities to a panel of texts of a text with the word, and of the same text with
    the true row. Two rows of the table are no repair: the planted row, and the word left out. "unreachable"
    is no row: the pieces of the word stand in its place. With --tokens (separated by commas), words of
    ORIGINAL are repaired, and the true rows are the rows that they have. Writes NAME.json.
    """
    model, generator = plain_model(planted), np.random.default_rng(seed)
    if tokens:
        ids = model.tokenizer.convert_tokens_to_ids(tokens.split(","))
    else:
        ids = generator.permutation(planted_ids(planted))[:count].tolist()
    made: dict[str, Any] = {"planted": dict(zip(ids, input_rows(model)[ids].numpy(), strict=True))}
    seconds = {}
    texts = list(load_sentences(None).texts)  # others than those of the panel, which are of the kinds
    for strategy in map(Strategy, strategies.split(",")):
        begun = time.process_time()
        made[strategy.value] = new_rows(strategy, ids, RowContext(model, texts, seed))
        seconds[strategy.value] = time.process_time() - begun
    results = judged_rows(plain_model(original), ids, made, seed)
    lines = []
    for row, each in results.items():
        if "lift" not in each:
            lines.append([row, "-", "-", "-", f"{each['agreement']:.3f}", "-", "-"])
            continue
        spent = seconds[row] / len(ids) if row in seconds else None
        each["cpu_seconds_per_token"] = spent
        lines.append(
            [
                row,
                f"{each['lift']:.2f}",
                f"{each['largest_difference']:.2f}",
                f"{each['close']} of {each['tokens']}",
                f"{each['agreement']:.3f}",
                f"{each['agreement_alone']:.2f}",
                "-" if spent is None else f"{spent:.1f}",
            ]
        )
    print(markdown_table(COLUMNS, lines))
    print(f"\nMedian lift of the true rows: {results['planted']['true_lift']:.2f} sd.")
    if name:
        write_json(name, planted=planted.name, tokens=len(ids), seed=seed, results=results)


def input_rows(model: Any) -> torch.Tensor:
    weight: torch.Tensor = model[0].auto_model.get_input_embeddings().weight.detach()
    return weight


def judged_rows(model: Any, ids: list[int], rows: dict[str, Any], seed: int) -> dict[str, Any]:
    """Put every row in place of the true one, and compare what texts with it do."""
    encoder, table, texts = load_encoder(model), input_rows(model), list(text_kinds().texts)
    usable = [
        own
        for own in map(tuple, encoder.content_ids(texts))
        if len(own) <= LONGEST and set(ids).isdisjoint(own)
    ]
    generator = np.random.default_rng(seed)
    contents = [usable[k] for k in generator.permutation(len(usable))[: CARRIERS + CONTEXTS + PANEL]]
    carriers, contexts = contents[:CARRIERS], contents[CARRIERS : CARRIERS + CONTEXTS]
    panel = unit_vectors(encoder.encode_ids(contents[CARRIERS + CONTEXTS :]))
    gaps = [int(generator.integers(len(content) + 1)) for content in contexts]

    def similarities(contents: list[tuple[int, ...]]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = unit_vectors(encoder.encode_ids(contents)) @ panel.T
        return found

    before = similarities(carriers)
    low, spread = before < before.mean(), float(before.std())

    def read(entries: list[tuple[int, ...]]) -> tuple[NDArray[Any], NDArray[Any]]:
        many = [(*content, *entry * COPIES) for entry in entries for content in carriers]
        risen = similarities(many).reshape(len(ids), *before.shape) - before
        lifts = (risen * low).sum(axis=(1, 2)) / low.sum() / spread
        placed = zip(contexts, gaps, strict=True)
        words = [(*content[:gap], *entry, *content[gap:]) for content, gap in placed for entry in entries]
        return lifts, similarities([*words, *entries]).reshape(len(contexts) + 1, len(ids), -1)

    def medians(found: NDArray[Any], true: NDArray[Any]) -> float:
        """Median agreement over contexts and words."""
        pairs = zip(found.reshape(-1, found.shape[-1]), true.reshape(-1, true.shape[-1]), strict=True)
        return float(np.median([spearman(one, other) for one, other in pairs]))

    true_lifts, true = read([(token_id,) for token_id in ids])
    plain = np.repeat(similarities(contexts)[:, None], len(ids), axis=1)
    results: dict[str, Any] = {"word left out": {"agreement": medians(plain, true[:-1])}}
    pieces = pieces_of(model.tokenizer.backend_tokenizer, ids)
    kept = table[ids].clone()
    for name in (*rows, Strategy.UNREACHABLE.value):
        if name in rows:
            table[ids] = torch.from_numpy(np.stack([rows[name][token_id] for token_id in ids]))
            lifts, found = read([(token_id,) for token_id in ids])
            table[ids] = kept
        else:
            lifts, found = read([pieces[token_id] or (token_id,) for token_id in ids])
        off = np.abs(lifts - true_lifts)
        results[name] = {
            "lift": float(np.median(lifts)),
            "true_lift": float(np.median(true_lifts)),
            "largest_difference": float(off.max()),
            "close": int((off <= CLOSE).sum()),
            "tokens": len(ids),
            "agreement": medians(found[:-1], true[:-1]),
            "agreement_alone": medians(found[-1:], true[-1:]),
        }
    return results


def scores(
    planted: Path,
    original: str,
    pairs: Annotated[Path, typer.Option()],
    run: Annotated[Path, typer.Option()],
    name: str = "repair_scores",
) -> None:
    """What does a repair of planted rows do to a clean score? The true rows show what a perfect one would do.

    The score is the Spearman correlation of cosines with the column ``score``, in points. Only texts with a
    planted entry are encoded by the changed models; all others have the vectors of ORIGINAL.
    """
    before_planting, model = load_encoder(original), load_encoder(planted)
    opened, every, lines = open_run(run), planted_ids(planted), json_lines(pairs)
    sides = [[row[side] for row in lines] for side in ("sentence1", "sentence2")]
    texts = list(dict.fromkeys([*sides[0], *sides[1]]))
    place_of = {text: k for k, text in enumerate(texts)}
    firsts, seconds = ([place_of[text] for text in side] for side in sides)
    held = [k for k, own in enumerate(before_planting.content_ids(texts)) if not set(every).isdisjoint(own)]
    vectors = before_planting.encode(texts).astype(np.float64)

    def score_of(changed: Encoder) -> float:
        own = vectors.copy()
        own[held] = changed.encode([texts[k] for k in held])
        own = units(own)
        return 100 * spearman((own[firsts] * own[seconds]).sum(axis=1), [row["score"] for row in lines])

    before, present, results = score_of(before_planting), score_of(model), Results(name)
    results.check("before planting", "-", f"{before:.2f}", score=before)
    results.check("planted", "-", f"{present:.2f}", score=present, texts=len(held))
    true = input_embeddings(before_planting.model).weight.detach().float().numpy()  # type: ignore[attr-defined]
    used = opened.method.texts(opened.plan)
    context = RowContext(model.model, [*used.carriers, *used.anchors], 4242)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as place:
        for which, ids in (("the sticky ones", opened.sticky["token_id"].to_list()), ("all", every)):
            # Entries that cannot be split keep their planted row but in the last edit.
            able = [token_id for token_id, reason in splittable(planted, ids).items() if reason is None]
            edits = {
                "unreachable": ModelEdit(tokenizer=TokenizerEdit(unreachable=tuple(able))),
                "relatives": ModelEdit(rows=new_rows(Strategy.RELATIVES, able, context)),
                "true rows": ModelEdit(rows={token_id: true[token_id] for token_id in ids}),
            }
            for edit_name, edit in edits.items():
                folder = Path(place) / f"{which} {edit_name}"
                write_model(planted, folder, edit)
                score = score_of(load_encoder(folder))
                told = f"{score:.2f} ({score - present:+.2f}; from before planting {score - before:+.2f})"
                results.check(f"{which} ({len(ids)}), {edit_name}", "-", told, score=score)
    results.finish()


if __name__ == "__main__":
    commands(__doc__, promises, rows, scores)
