"""Explain why a token is sticky: compare what its copies and copies of benign tokens do inside the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from numbers import Integral
from pathlib import Path

from stickytoken.data import SentenceSource, load_sentences
from stickytoken.data.readability import require_readable
from stickytoken.detection.naming import TokenSource, available_tokens, token_ids as named_ids
from stickytoken.detection.run import Run, encoder_for, open_run
from stickytoken.encoders.protocol import IdEncoder, require_ids
from stickytoken.errors import InputError
from stickytoken.explanation import files
from stickytoken.explanation._job import Job
from stickytoken.explanation.measuring import choose_texts
from stickytoken.explanation.result import Explanation
from stickytoken.loading import AnyModel
from stickytoken.measurement.engine import ProgressCallback, ignore_progress
from stickytoken.measurement.store import ResultFolder
from stickytoken.settings.explain import ExplainSettings
from stickytoken.validation import file_path, list_of, or_default, require_callable, shown
from stickytoken.vocabulary import Vocabulary, categorize, match_benign

__all__ = ["ExplainSettings", "Explanation", "explain"]

# How many of a run's tokens are explained if the user names none. Each token takes most of a minute on
# two cores.
_WORST_TOKENS = 3


def explain(
    encoder: AnyModel | None = None,
    tokens: TokenSource | None = None,
    *,
    run: Run | str | Path | None = None,
    texts: Iterable[str] | str | None = None,
    sentences: SentenceSource | None = None,
    settings: ExplainSettings | None = None,
    out: str | Path | None = None,
    progress: ProgressCallback = ignore_progress,
) -> Explanation:
    """Explain what copies of tokens do inside a model, compared with copies of matched benign tokens.

    Args:
        encoder: The model: an encoder, or anything else that `load_encoder` takes. If None, the run's model
            is loaded.
        tokens: Ids or texts of the tokens to explain, or files of them. If None, the run's three worst
            tokens are explained.
        run: A finished run of this model, or its folder. The explanation uses the carriers of the run. No
            token that the run calls sticky serves as a benign token.
        texts: Texts to use as carriers instead of texts of the run or the corpus.
        sentences: The corpus, from which carriers and the texts to compare them with are drawn: a list of
            sentences, or anything else that `load_sentences` takes. If None, it is the bundled corpus, and
            the carriers are those of the run if there is one.
        settings: Settings of the explanation. If None, the defaults are used.
        out: Folder for the results, with a subfolder for each token, written as soon as that token is
            explained. If None, nothing is written. Repeating the call continues an interrupted explanation,
            and opens a finished one.
        progress: Called after every step.

    Returns:
        The explanations of all tokens, in the order of ``tokens``.

    Raises:
        InputError: The tokens, texts or settings cannot be used, or too few benign tokens match.
        ModelError: The encoder gives no access to the internal states of its model.
        EncodingError: A text has no usable vector.
        RunError: The run belongs to another model, ``out`` holds another explanation of a token, or ``out``
            cannot be written.

    Examples:
        >>> settings = stickytoken.ExplainSettings(carriers=3, benign=3, attribution=False)
        >>> explanation = stickytoken.explain(model, ["[CLS]"], texts=documents[:3], settings=settings)
        >>> [token.token for token in explanation.tokens]
        ['[CLS]']
    """
    from stickytoken.inspection import inspector_of

    # Check everything that does not need the model before loading the model.
    settings = or_default("settings", settings, ExplainSettings())
    require_callable("progress", progress)
    run = None if run is None else open_run(run)
    carrier_texts = None
    if texts is not None:
        carrier_texts = list_of("texts", "texts", [texts] if isinstance(texts, str) else texts)
        _require_usable_texts(carrier_texts)
    corpus = load_sentences(sentences)
    out = None if out is None else file_path("out", out)
    if out is not None:
        files.refuse_run_folder(out)
        _require_unlocked(out, tokens, run)
    if tokens is None:
        tokens = _choose_worst(run)
    encoder = require_ids(encoder_for(encoder, run, "explain"), "explain")
    inspector = inspector_of(encoder)
    corpus = require_readable(corpus, encoder.tokenizer, encoder.name)
    vocabulary = categorize(encoder.tokenizer)
    token_ids = _choose_ids(encoder, vocabulary, tokens)
    # A run says which tokens are not benign. Without a run, only the tokens to explain are excluded.
    not_benign = set(token_ids) if run is None else run.sticky_ids
    excluded = _find_ids_without_embedding(encoder, vocabulary) | not_benign
    matches = {
        token_id: match_benign(vocabulary, token_id, excluded, settings.benign, settings.seed)
        for token_id in token_ids
    }
    run_of_carriers = run if sentences is None else None  # the user's sentences come before the run's
    material = choose_texts(encoder, settings, run_of_carriers, carrier_texts, corpus)
    job = Job(inspector, vocabulary, settings, material, run, progress)
    explanations = []
    for token_id, match in matches.items():
        identity_parts = job.list_identity_parts(token_id, match)
        # `compute` takes the folder that keeps intermediate results, or None.
        compute = partial(job.explain, token_id, match, identity_parts)
        if out is None:
            explanations.append(compute(None))
        else:
            folder = out / str(token_id)
            explanations.append(files.load_or_explain(folder, identity_parts, compute))
    return Explanation(explanations)


def _require_usable_texts(texts: Sequence[object]) -> None:
    if not texts:
        raise InputError("texts is empty: pass at least one text, or leave texts out")
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"texts contains {shown(text)}: pass strings only")
        if not text.strip():
            raise InputError(f"texts contains {text!r}: pass texts with words, or leave it out (--text)")


def _find_ids_without_embedding(encoder: IdEncoder, vocabulary: Vocabulary) -> set[int]:
    # A single token is never too long, so a token that does not fit has no embedding.
    return {token.id for token in vocabulary.available if not encoder.fits((token.id,))}


def _choose_ids(encoder: IdEncoder, vocabulary: Vocabulary, tokens: TokenSource) -> list[int]:
    token_ids = named_ids(vocabulary, tokens)
    repeated_ids = [token_id for token_id, count in Counter(token_ids).items() if count > 1]
    if repeated_ids:
        raise InputError(f"token id {repeated_ids[0]} is given twice: leave one out")
    available_tokens(vocabulary, token_ids)  # raises an error if a token cannot occur in text
    ids_without_embedding = _find_ids_without_embedding(encoder, vocabulary).intersection(token_ids)
    if ids_without_embedding:
        token_id = next(iter(ids_without_embedding))
        raise InputError(f"token id {token_id} has no embedding in {encoder.name}: leave it out")
    return token_ids


def _require_unlocked(folder: Path, tokens: TokenSource | None, run: Run | None) -> None:
    requested = _choose_worst(run) if tokens is None else tokens
    names: Sequence[object] = requested if isinstance(requested, (list, tuple)) else [requested]
    # The vocabulary is not known yet: this check comes before the model is loaded.
    ids_in_run = {} if run is None else dict(run.tokens.select("token", "token_id").iter_rows())
    for name in names:
        token_id = ids_in_run.get(name) if isinstance(name, str) else name
        if isinstance(token_id, Integral):
            # Another process may be explaining the token in this folder.
            ResultFolder(folder / str(token_id)).require_unlocked()


def _choose_worst(run: Run | None) -> list[int]:
    if run is None:
        raise InputError("no tokens are named: pass tokens, or a run with sticky tokens")
    sticky_ids: list[int] = run.sticky["token_id"].to_list()  # worst first
    if not sticky_ids:
        raise InputError(f"the run in {run.path} found no sticky tokens: name the tokens to look at")
    return sticky_ids[:_WORST_TOKENS]
