"""Plan a run: how many texts and tokens each round has, and which. No token is measured here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from stickytoken.data import Sentences
from stickytoken.encoders.protocol import Encoder, capabilities_of, require_ids
from stickytoken.errors import InputError
from stickytoken.insertion import Placement
from stickytoken.methods import probes
from stickytoken.methods.base import Job
from stickytoken.methods.profile import documents, texts
from stickytoken.methods.profile.records import ProfilePlanRecord
from stickytoken.settings.profile import Measuring, ProfileSettings
from stickytoken.vocabulary import Vocabulary, ordinary_ids, special_tokens

# Number of random tokens that are inserted into all carriers. In a run over few tokens, there is one pilot
# for every `_TOKENS_PER_PILOT` tokens, but at least `LEAST_PILOTS`. Pilots are used to choose the few
# carriers that represent all, to measure the error of estimates from these few carriers, and to define the
# ordinary token. The standard error of their median is about a tenth of the standard deviation over tokens
# with 128 pilots, a fifth with 32.
PILOT_TOKENS = 128
LEAST_PILOTS = 32
_TOKENS_PER_PILOT = 8
# Number of tokens that may be measured closely even if the budget allows fewer.
LEAST_CONFIRMED = 100
# Number of tokens in a batch of the confirming round, and in a run over few tokens. With smaller batches, a
# GPU would often be idle. With larger batches, the last one would cost more texts, although it only shows
# that the round can end: more than a tenth of all texts of a run over 300 tokens.
CONFIRMING_BATCH = 64
_SMALL_BATCH = 16
# Number of tokens that erase most, and of tokens that are expected to push most, to measure in documents. In
# a run over few tokens, there is one of each for every `_TOKENS_PER_SUSPECT` tokens, but at least
# `_LEAST_SUSPECTS`. The expectation from sentences has a rank correlation of about 0.5 with the push of
# random tokens.
_MOST_SUSPECTS = 40
_LEAST_SUSPECTS = 10
_TOKENS_PER_SUSPECT = 32
# Step between the pilots that are measured in all documents. Together, these pilots are the ordinary token
# there.
_ORDINARY_STEP = 16
# Key of the random generator that draws the pilots.
_PILOTS_KEY = 2


class Cell(NamedTuple):
    """The number of copies in a carrier, and their placement."""

    placement: Placement
    copies: int


def cells(settings: ProfileSettings, carrier_count: int) -> list[Cell]:
    """Return the placement and the number of copies for each carrier.

    The carriers cycle through all combinations of a placement and a number of copies. Consecutive carriers
    differ in both the placement and the number of copies, so that even a few carriers cover every placement
    and every number. For example, with 8 and 4 copies, the cycle is: 8 copies at the start, 4 at the end, 8
    at random places, 4 at the start, 8 at the end, 4 at random places.
    """
    copy_counts = settings.copies
    combinations = []
    for turn in range(len(copy_counts)):
        for index, placement in enumerate(Placement):
            combinations.append(Cell(placement, copy_counts[(index + turn) % len(copy_counts)]))
    return [combinations[carrier % len(combinations)] for carrier in range(carrier_count)]


def _scale_count(job: Job[ProfileSettings], most: int, least: int, tokens_per_one: int) -> int:
    if not documents.measures_few_tokens(job):
        return most
    return min(most, max(least, len(job.tokens) // tokens_per_one))


def tokens_per_batch(job: Job[ProfileSettings]) -> int:
    """Return the number of tokens in a batch of the confirming round."""
    return _SMALL_BATCH if documents.measures_few_tokens(job) else CONFIRMING_BATCH


def suspects_needed(job: Job[ProfileSettings]) -> int:
    """Return how many tokens to measure in documents because they erase most, and as many that may push."""
    return _scale_count(job, _MOST_SUSPECTS, _LEAST_SUSPECTS, _TOKENS_PER_SUSPECT)


def pilots_needed(job: Job[ProfileSettings]) -> int:
    """Return the number of random tokens that are inserted into all carriers."""
    return _scale_count(job, PILOT_TOKENS, LEAST_PILOTS, _TOKENS_PER_PILOT)


def ordinary_tokens(job: Job[ProfileSettings], pilots: Sequence[int]) -> Sequence[int]:
    """Return the pilots whose median push is that of the ordinary token.

    In a run over few tokens, these are all pilots, each measured in as many documents as its push requires.
    To measure some of them in all documents would make such a run a fifth longer.
    """
    return pilots if documents.measures_few_tokens(job) else pilots[::_ORDINARY_STEP]


def carriers_needed(settings: ProfileSettings) -> int:
    """Return the number of carriers that a run needs: its screening carriers plus its confirming carriers."""
    return settings.screening_texts + settings.confirming_texts


def tokens_to_confirm(settings: ProfileSettings, token_count: int) -> int:
    """Return how many tokens can be confirmed within the budget, but at least `LEAST_CONFIRMED`.

    The texts of the pilots do not count against the budget, because their number does not depend on the
    tokens of the run.
    """
    texts_left = (settings.budget - settings.screening_texts) * token_count
    return max(LEAST_CONFIRMED, int(texts_left / settings.confirming_texts))


def most_texts_to_confirm(settings: ProfileSettings, token_count: int) -> int:
    """Return how many texts a run over these tokens encodes at most after its screen.

    It is for models behind an endpoint, where texts cost money. So tokens with unusual vectors, which are
    measured in documents too, aren't counted: such models have no token vectors.
    """
    most_confirmed = min(token_count, tokens_to_confirm(settings, token_count))
    suspects = token_count
    if settings.documents is not Measuring.ALL and token_count > PILOT_TOKENS:
        # Tokens that erase most, tokens that may push most, and all others that turn out to erase enough.
        suspects = min(token_count, 2 * _MOST_SUSPECTS + most_confirmed)
    most_documents = documents.DOCUMENT_COUNTS[-1]
    return most_confirmed * settings.confirming_texts + (PILOT_TOKENS + suspects) * most_documents


def choose_texts(
    encoder: Encoder,
    settings: ProfileSettings,
    corpus: Sentences,
    vocabulary: Vocabulary,
    *,
    carriers: int,
    pilots: int,
    few_documents: bool,
    is_allowed: Callable[[str], bool] | None = None,
) -> ProfilePlanRecord:
    """Choose the texts and the pilots of a run, or of a recheck of its model.

    Args:
        encoder: the model.
        settings: settings of the run.
        corpus: the texts to choose from; if it is the bundled one, in addition to the bundled kinds of text.
        vocabulary: vocabulary of the model, from which the pilots are drawn.
        carriers: number of carriers.
        pilots: number of pilots.
        few_documents: whether only the documents that receive copies are searched.
        is_allowed: returns whether a text may be used. A recheck uses no text that the run has used. If
            ``is_allowed`` is None, all texts may be used.

    Raises:
        InputError: the corpus has too few usable texts.
        ModelError: the model cannot insert copies as the settings say, or not compute in their precision.
    """
    probes.require_insertion(encoder, settings.inserted_as)
    _require_screening_precision(encoder, settings)
    groups = texts.group_texts(encoder, corpus)
    if is_allowed is not None:
        groups = texts.keep_allowed(groups, is_allowed)
        if not groups:
            raise InputError(
                f"the run has used all {len(corpus)} sentences of {corpus.source}, but others are needed: "
                "pass other sentences (--sentences)"
            )
    # With the bundled corpus, carriers are its shortest texts. Others are as long as these, so that the
    # thresholds mean the same.
    length = None if corpus.bundled else texts.length_of_bundled_carriers(encoder, settings, carriers)
    return ProfilePlanRecord(
        carriers=texts.choose_carriers(encoder, settings, groups, carriers, corpus.source, length),
        pilots=_draw_pilots(ordinary_ids(vocabulary, encoder.tokenizer), pilots, settings.seed),
        call_noise=capabilities_of(encoder).noise,
        documents=documents.plan_documents(
            encoder, corpus, settings.seed, few_documents=few_documents, is_allowed=is_allowed
        ),
    )


def require_spelled_tokens(job: Job[ProfileSettings]) -> None:
    """Raise an InputError if the tokenizer reads the copies of every token of the job as other entries."""
    # Special tokens are measured in every run, whether the user named them or not.
    special = special_tokens(job.vocabulary, job.encoder.tokenizer)
    ordinary = [token for token in job.tokens if token not in special]
    # If only some are misread, the others can be measured.
    if ordinary and all(token.id in job.vocabulary.unspelled for token in ordinary):
        raise InputError(
            "in a text, the tokenizer reads copies of these tokens as other vocabulary entries: name other "
            "tokens"
        )


def _require_screening_precision(encoder: Encoder, settings: ProfileSettings) -> None:
    # Now, before anything is measured, because a model may refuse it.
    if settings.screen_precision is not None:
        reader_of_ids = require_ids(encoder, purpose=f"screening in {settings.screen_precision}")
        reader_of_ids.at(settings.screen_precision)  # only for the error that it may raise


def _draw_pilots(ids: Sequence[int], count: int, seed: int) -> list[int]:
    order = np.random.default_rng([seed, _PILOTS_KEY]).permutation(ids)
    return sorted(order[:count].tolist())
