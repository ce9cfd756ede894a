"""Evidence for named tokens, by either method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stickytoken.corpora import Sentences
from stickytoken.corpora.pairs import SentencePair
from stickytoken.encoders.protocol import Encoder
from stickytoken.errors import InputError
from stickytoken.measurement.progress import ProgressCallback, ignore_progress
from stickytoken.methods.profile.probe import ProfileEvidence, probe_profile
from stickytoken.methods.profile.settings import ProfileSettings
from stickytoken.methods.protocol import MethodSettings
from stickytoken.methods.registry import choose_method
from stickytoken.methods.std.probe import Evidence, probe_std
from stickytoken.methods.std.settings import StdSettings
from stickytoken.vocabulary.categories import Vocabulary


def probe(
    encoder: Encoder,
    vocabulary: Vocabulary,
    token_ids: Sequence[int],
    *,
    method: str | None = None,
    sentences: Sentences | str | Path | None = None,
    pairs: Sequence[SentencePair] | str | Path | None = None,
    settings: MethodSettings | None = None,
    progress: ProgressCallback = ignore_progress,
) -> list[ProfileEvidence] | list[Evidence]:
    """Measure named tokens, without a run folder.

    Args:
        encoder: the model.
        vocabulary: of the model.
        token_ids: the tokens; with text insertion they must be able to occur in text.
        method: ``profile`` or ``std``; None is the one that the settings or pairs belong to,
            else ``profile``.
        sentences: the corpus; None is the bundled one.
        pairs: pairs, in place of sampling; ``std`` only.
        settings: of the method; None is its defaults.
        progress: told of every step.

    Raises:
        InputError: a token that cannot be probed, or inputs that cannot be used.
    """
    chosen = choose_method(method, settings, pairs is not None)
    settings = chosen.settings() if settings is None else settings
    if isinstance(settings, StdSettings):
        return probe_std(
            encoder,
            vocabulary,
            token_ids,
            sentences=sentences,
            pairs=pairs,
            settings=settings,
            progress=progress,
        )
    if pairs is not None:
        raise InputError("the method profile takes no pairs: pass sentences, or use the method std")
    if not isinstance(settings, ProfileSettings):
        raise InputError(f"a {type(settings).__name__} cannot be used")
    return probe_profile(
        encoder, vocabulary, token_ids, sentences=sentences, settings=settings, progress=progress
    )
