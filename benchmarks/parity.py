"""Compare the paper's method, as implemented here, with its published numbers.

python benchmarks/parity.py minilm                        # about 45 minutes on 2 CPU cores
python benchmarks/parity.py minilm --full --device cuda   # every token, every candidate
python benchmarks/parity.py model models/all-mpnet-base-v2 mpnet_pairs.csv    # about 20 minutes
python benchmarks/parity.py forty --device cuda           # the paper's forty models, from the hub
python benchmarks/parity.py forty --model all-MiniLM-L6-v2 --sample 300
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from bench import (
    MINILM,
    MINILM_SCORE_THRESHOLD,
    MINILM_U,
    PUBLISHED,
    Check,
    check,
    commands,
    detected,
    finish,
    published_table,
    refuse,
    show_table,
    write,
    write_json,
)
from stickytoken.cli.console import progress_bar
from stickytoken.comparisons.published import published_models
from stickytoken.detection import probe
from stickytoken.encoders import Encoder, analyze_vocabulary, load_encoder, load_tokenizer, mean_similarity
from stickytoken.errors import StickyTokenError
from stickytoken.methods.std.plan import StdEvidence, StdResultRecord, StdSettings, outlier_threshold
from stickytoken.unit_vectors import unit_vectors

MODELS = Path(__file__).with_name("paper_models.csv")


def minilm(
    published: Path = PUBLISHED,
    model: str = MINILM,
    device: str | None = None,
    candidates: int = 48,
    scores: int = 120,
    kills: int = 10,
    full: bool = False,
    run: Path = Path("runs/parity-full"),
    only: list[str] | None = None,
    name: str = "parity",
) -> None:
    """Vocabularies, u, scores, validation rates and the final rule, with the published tables in --published.

    --candidates are validated, --scores of them and of other tokens are scored; with --full, all are, in the
    folder --run. --only names a part: vocabulary, "mean similarity", "final rule", full, scores, validation,
    memory, kill.
    """
    encoder = load_encoder(model, device=device)
    parts: dict[str, Callable[[], list[Check]]] = {
        "vocabulary": lambda: vocabularies(model, published),
        "mean similarity": lambda: [u_check(encoder, MINILM_U)],
        "final rule": lambda: [final_rule(published)],
    }
    if full:
        parts["full"] = lambda: full_run(encoder, published, run)
    else:
        parts["scores"] = lambda: scores_of_some(encoder, published, scores)
        parts["validation"] = lambda: [validation_rates(encoder, published, candidates)]
    parts |= {"memory": lambda: [peak_memory(model)], "kill": lambda: [kill_and_resume(model, kills)]}
    checks: list[Check] = []
    seconds: dict[str, float] = {}
    for part, work in parts.items():
        if not only or part in only:
            started = time.perf_counter()
            checks += work()
            seconds[part] = round(time.perf_counter() - started, 1)
            # After every part, so that hours of work are not lost with the last one.
            write(checks, name, encoder.device, seconds=seconds, model=Path(model).name)
    finish(checks, name, encoder.device, seconds=seconds, model=Path(model).name)


def vocabularies(model: str, folder: Path) -> list[Check]:
    tokenizers, checks = folder.parent / "tokenizers", []
    for name, place, available, most in (
        ("MiniLM", model, 23_699, 0),
        ("T5", tokenizers / "t5", 32_097, 1),
        ("RoBERTa", tokenizers / "roberta-base", 49_894, None),
    ):
        ours = analyze_vocabulary(load_tokenizer(place))
        count = len(ours.available)
        checks.append(check(f"{name}: available tokens", f"{available:,}", f"{count:,}", count == available))
        if most is not None:
            theirs = published_table(folder, f"{name.lower()}_categories")["category"].to_list()
            different = sum(a.value != b for a, b in zip(ours.categories, theirs, strict=True))
            bar = f"at most {most}" if most else "0 of 30,522"
            checks.append(check(f"{name}: categories that differ", bar, str(different), different <= most))
    return checks


def u_check(encoder: Encoder, theirs: float) -> Check:
    u = mean_similarity(encoder).value
    return check("mean similarity u", f"{theirs:.5f} to 1e-4", f"{u:.6f}", abs(u - theirs) <= 1e-4, u=u)


def final_rule(folder: Path) -> Check:
    rows = published_table(folder, "minilm_candidates")
    threshold = outlier_threshold(rows["validation_rate_cosine"].to_list(), 0.7)
    ours = set(rows.filter(pl.col("validation_rate_cosine") > threshold)["token_id"])
    theirs = set(rows.filter("sticky")["token_id"])
    return check(
        "final rule on the published rates",
        "exactly the 21 published tokens",
        f"{len(ours & theirs)} of them, {len(ours - theirs)} others",
        ours == theirs and len(theirs) == 21,
        threshold=threshold,
    )


def spread_over(rows: pl.DataFrame, count: int) -> pl.DataFrame:
    places = np.linspace(0, len(rows) - 1, min(count, len(rows))).round().astype(int)
    return rows.filter(pl.int_range(pl.len()).is_in(places.tolist()))


def rates(encoder: Encoder, tokens: pl.DataFrame, pairs: Path) -> NDArray[np.float64]:
    with progress_bar() as progress:
        ids = tokens["token_id"].to_list()
        evidence = probe(encoder, ids, settings=StdSettings(), pairs=pairs, progress=progress)
    return np.array([each.validation_rate["cosine"] for each in evidence if isinstance(each, StdEvidence)])


def validation_rates(encoder: Encoder, folder: Path, count: int) -> Check:
    chosen = spread_over(published_table(folder, "minilm_candidates"), count)
    ours = rates(encoder, chosen, folder / "minilm_pairs.csv")
    return compare_rates(ours, chosen["validation_rate_cosine"].to_numpy())


def compare_rates(ours: NDArray[np.float64], theirs: NDArray[np.float64]) -> Check:
    off = np.abs(ours - theirs)
    pearson = float(np.corrcoef(ours, theirs)[0, 1])
    return check(
        f"validation rates of {len(ours)} candidates",
        "each within 0.02, Pearson >= 0.97",
        f"largest difference {off.max():.4f}, Pearson {pearson:.4f}",
        off.max() <= 0.02 and pearson >= 0.97,
        largest=float(off.max()),
        median=float(np.median(off)),
        mean_signed=float((ours - theirs).mean()),
        pearson=pearson,
    )


def scores_of_some(encoder: Encoder, folder: Path, count: int) -> list[Check]:
    rows = published_table(folder, "minilm_candidates")
    known = set(rows["token_id"])
    rest = [token.id for token in analyze_vocabulary(encoder).available if token.id not in known]
    others = np.random.default_rng(0).choice(rest, size=count, replace=False).tolist()
    with tempfile.TemporaryDirectory() as work:
        run = detected(
            encoder,
            pairs=folder / "minilm_pairs.csv",
            tokens=[*spread_over(rows, count)["token_id"], *others],
            settings=StdSettings(candidate_share=1 / (2 * count), validation_pairs=2),
            out=Path(work) / "run",
        )
        return compare_scores(run.tokens, rows, others)


def compare_scores(tokens: pl.DataFrame, theirs: pl.DataFrame, others: list[int]) -> list[Check]:
    joined = theirs.select("token_id", theirs="sticky_score").join(tokens, on="token_id")
    off = (joined["sticky_score"] - joined["theirs"]).abs().to_numpy()
    median, largest = float(np.median(off)), float(off.max())
    above = tokens.filter(pl.col("token_id").is_in(others), pl.col("sticky_score") >= MINILM_SCORE_THRESHOLD)[
        "token_id"
    ].to_list()
    return [
        check(
            f"scores of {len(joined)} candidates",
            "median difference <= 1.0",
            f"median {median:.7f}, largest {largest:.7f}",
            median <= 1.0,
            median=median,
            largest=largest,
        ),
        check(
            f"scores of {len(others)} other tokens",
            "at most 2 % above the published threshold",
            f"{len(above)} above {MINILM_SCORE_THRESHOLD:.4f}",
            len(above) <= 0.02 * len(others),
            above=above,
        ),
    ]


def full_run(encoder: Encoder, folder: Path, out: Path) -> list[Check]:
    """The whole vocabulary: the published shortlist, its rates, the published sticky tokens."""
    rows = published_table(folder, "minilm_candidates")
    run = detected(encoder, method="std", pairs=folder / "minilm_pairs.csv", out=out)
    tokens, result, sticky = run.tokens, run.result_of(StdResultRecord), set(run.sticky["token_id"])
    known = set(rows["token_id"])
    shortlist = set(tokens.filter(pl.col("verdict").is_not_null())["token_id"])
    joined = rows.join(tokens, on="token_id").filter(pl.col("validation_rate").is_not_null())
    theirs = set(rows.filter("sticky")["token_id"])
    return [
        *compare_scores(tokens, rows, sorted(set(tokens["token_id"]) - known)),
        check(
            "shortlist of the whole vocabulary",
            "the 474 published candidates",
            f"{len(shortlist & known)} of them, {len(shortlist - known)} others",
            len(shortlist & known) >= 0.98 * len(known),
            seconds=result.seconds,
            sequences=result.sequences,
        ),
        compare_rates(joined["validation_rate"].to_numpy(), joined["validation_rate_cosine"].to_numpy()),
        check(
            "sticky tokens of the whole vocabulary",
            "mostly the 21 published ones (random placement is redrawn)",
            f"{len(sticky & theirs)} of them, {len(sticky - theirs)} others",
            len(sticky & theirs) >= 11,
            ours=sorted(sticky),
            threshold=result.rate_threshold,
        ),
    ]


def quiet_detection(model: str, out: Path, *options: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "stickytoken", "detect", model, "--device", "cpu", *options]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, "--out", str(out)], **quiet)


def kill_and_resume(model: str, kills: int) -> Check:
    """Kill -9 at random moments of a short run on the CPU, resume, compare bytes."""
    generator = random.Random(0)
    options = [
        "--method",
        "std",
        "--sample",
        "30",
        "--set",
        "validation-pairs=8",
        "--set",
        "candidate-share=0.5",
    ]

    def finished(out: Path) -> bytes:
        if quiet_detection(model, out, *options).wait():
            refuse(f"the detection in {out} failed")
        return (out / "tokens.parquet").read_bytes()

    with tempfile.TemporaryDirectory() as work:
        started = time.perf_counter()
        expected = finished(Path(work) / "whole")
        duration = time.perf_counter() - started
        equal, moments = 0, []
        for attempt in range(kills):
            folder = Path(work) / f"killed-{attempt}"
            process = quiet_detection(model, folder, *options)
            moments.append(round(generator.uniform(0.05, 0.95) * duration, 2))
            time.sleep(moments[-1])
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
            equal += finished(folder) == expected
    return check(
        f"kill -9 at {kills} random moments, then resume",
        "identical bytes each time",
        f"{equal} of {kills} identical",
        equal == kills,
        seconds_into_the_run=moments,
        uninterrupted=round(duration, 1),
    )


def peak_memory(model: str) -> Check:
    """Peak resident memory of a process that computes u and samples the pairs."""
    with tempfile.TemporaryDirectory() as work:
        options = ("--sample", "2", "--set", "validation-pairs=2")
        process = quiet_detection(model, Path(work) / "run", *options)
        _, exit_status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(exit_status)
    scale = 1 if sys.platform == "darwin" else 1024  # macOS reports bytes
    peak = usage.ru_maxrss * scale / 1e9
    passed = process.returncode == 0 and peak < 2
    return check("peak memory: u and pairs", "under 2 GB", f"{peak:.2f} GB", passed, bytes=peak * 1e9)


def of_model(model: Path, pairs: Path, published: Path = PUBLISHED, tokens: int = 12) -> None:
    """u, similarities of the published pairs, and rates of published sticky tokens, of another model.

    MODEL is a folder whose name is that of the model in the published tables. The similarities tell at once
    whether the model is the published one.
    """
    encoder, name = load_encoder(model), model.name
    facts = published_table(published, "models").filter(model_name=name)
    if not len(facts):
        refuse(f"{name} is not in the published tables")
    rows = pl.read_csv(pairs)
    whole = [
        all(encoder.fits(ids) for ids in encoder.content_ids(pair))
        for pair in zip(rows["sentence1"], rows["sentence2"], strict=True)
    ]
    rows = rows.filter(pl.Series(whole))  # the published similarities of the others are of cut texts
    first, second = (
        unit_vectors(encoder.encode(rows[column].to_list())) for column in ("sentence1", "sentence2")
    )
    worst = float(np.abs((first * second).sum(axis=1) - rows["similarity"].to_numpy()).max())
    title = f"similarities of {len(rows):,} pairs"
    checks = [
        check(title, "within 1e-5", f"{worst:.1e}", worst <= 1e-5, worst=worst),
        u_check(encoder, facts["vocabulary_mean_cosine"].item()),
    ]
    write(checks, f"parity-{name}", encoder.device, model=name)
    chosen = spread_over(published_table(published, "sticky_tokens").filter(model=name), tokens)
    ours = rates(encoder, chosen, pairs)
    largest = float(np.abs(ours - chosen["validation_rate"].to_numpy()).max())
    checks.append(
        check(
            f"validation rates of {len(ours)} published tokens",
            "each within 0.02",
            f"largest difference {largest:.4f}",
            largest <= 0.02,
            tokens=chosen["token"].to_list(),
            ours=ours.tolist(),
            largest=largest,
        )
    )
    finish(checks, f"parity-{name}", encoder.device, model=name)


@dataclass(frozen=True)
class PaperModel:
    """A model of the paper, how it is loaded here, and what was published about it.

    The published runs used no prompt; the largest models ran in bfloat16, to fit one GPU. The padding side is
    as published and without effect here, where no batch is padded.
    """

    model: str
    hub_name: str
    prompt: str
    dtype: str
    padding_side: str
    max_length: int | None
    trust_remote_code: bool
    available: int
    candidates: int
    sticky: int
    mean_similarity: float
    score_threshold: float


NUMBERS = ("available", "candidates", "sticky", "mean_similarity", "score_threshold")


def paper_models() -> dict[str, PaperModel]:
    loading = pl.read_csv(MODELS, schema_overrides={"prompt": pl.String}).with_columns(
        pl.col("prompt").fill_null("")
    )
    known = published_models().drop("parameters", "vocabulary")
    rows = known.join(loading, on="model", validate="1:1", maintain_order="left").to_dicts()
    return {row["model"]: PaperModel(**row) for row in rows}


def forty(
    model: list[str] | None = None,
    root: Path | None = None,
    sentences: str = "paper",
    pairs: Path | None = None,
    sample: int | None = None,
    device: str | None = None,
    out: Path = Path("runs/paper"),
    name: str = "paper_table",
) -> None:
    """The paper's method on its forty models, or on each --model: our numbers beside the published ones.

    A model is loaded from --root, a folder with a folder per model, or from the hub. One that cannot be
    loaded or run is listed with the reason and does not stop the others. The published runs used sentences
    of eleven STS sets (--sentences paper); the sample of sentences differs, so numbers agree in kind, not in
    digits, except the vocabulary's.
    """
    options = {"sentences": None if pairs else sentences, "pairs": pairs, "sample": sample}
    found = run_models(model, root, device, out, settings=StdSettings(), **options)
    write_json(name, device or "cpu", sentences=str(pairs or sentences), sample=sample, models=found)


def run_models(
    names: list[str] | None, root: Path | None, device: str | None, out: Path, **options: Any
) -> list[dict[str, Any]]:
    """Run the models and print what they gave, or why there is nothing."""
    known = paper_models()
    found: list[dict[str, Any]] = []
    if unknown := [name for name in names or () if name not in known]:
        refuse(f"not among the paper's models: {', '.join(unknown)}")
    for model in [known[name] for name in names or known]:
        theirs = {name: getattr(model, name) for name in NUMBERS}
        ours, failure = None, None
        try:
            ours = run_model(model, root, device, out, options)
        # torch raises RuntimeError when the device's memory ends.
        except (StickyTokenError, MemoryError, RuntimeError) as error:
            failure = " ".join(str(error).split()) or type(error).__name__
        found.append({"model": model.model, "published": theirs, "ours": ours, "failure": failure})
    rows = [
        [
            each["model"],
            *(
                f"{each['ours'][name]:{form}} / {each['published'][name]:{form}}"
                for name, form in zip(NUMBERS, (",", "", "", ".4f", ".1f"), strict=True)
            ),
        ]
        for each in found
        if each["ours"]
    ]
    show_table("ours / published", ("model", *(name.replace("_", " ") for name in NUMBERS)), rows)
    for each in found:
        if each["failure"]:
            print(f"not run: {each['model']}: {each['failure']}")
    return found


def run_model(
    model: PaperModel, root: Path | None, device: str | None, out: Path, options: dict[str, Any]
) -> dict[str, Any]:
    local = root / model.model if root else None
    encoder = load_encoder(
        local if local and local.is_dir() else model.hub_name,
        device=device,
        prompt=model.prompt,
        dtype=model.dtype,
        max_length=model.max_length,
        trust_remote_code=model.trust_remote_code,
    )
    run = detected(encoder, out=out / model.model, **options)
    result = run.result_of(StdResultRecord)
    return {
        "available": run.record.model.available,
        "scored": result.scored,
        "candidates": result.candidates,
        "sticky": result.sticky,
        "mean_similarity": run.plan.mean_similarity,
        "score_threshold": result.score_threshold,
        "seconds": result.seconds,
        "device": encoder.device,
        "tokens": run.sticky["token"].to_list(),
    }


if __name__ == "__main__":
    commands(__doc__, minilm, model=of_model, forty=forty)
