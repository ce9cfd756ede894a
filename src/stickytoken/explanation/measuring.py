"""Choose the texts of an explanation, and measure what copies in them do inside the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stickytoken.data import Sentences, open_ended
from stickytoken.detection.run import Run
from stickytoken.encoders.protocol import IdEncoder, find_kept_prompt
from stickytoken.errors import InputError
from stickytoken.insertion import Placement, Token, copies_as_ids, draw_path
from stickytoken.measurement.engine import Progress, ProgressCallback
from stickytoken.settings.explain import ExplainSettings
from stickytoken.unit_vectors import exact_unit_vectors, unit_vectors

if TYPE_CHECKING:
    from stickytoken.inspection.module_embedding import Inside, Inspector

Floats: TypeAlias = NDArray[np.float64]


# Placeholder for a copy. No token has the id of the placeholder, so a copy is never confused with an
# occurrence of the same token in the carrier.
_COPY = Token(id=-1, text="")
# Combined with the seed to draw the gaps for the copies.
_GAPS_KEY = 0
# Maximum number of anchors.
_MAX_ANCHORS = 64
# Maximum number of characters to quote from a text in an error.
_SHOWN_CHARACTERS = 60


class Part(IntEnum):
    """The part of the input that a position belongs to."""

    CARRIER = 0
    COPIES = 1
    PROMPT = 2
    SPECIAL = 3


@dataclass(frozen=True, slots=True)
class PlacedCarrier:
    """A text, and where copies go in it, which is the same for every token.

    Attributes:
        text: The text.
        ids_before: Content ids of the text without copies, including the prompt.
        parts_before: The `Part` of each id in ``ids_before``.
        template: Content ids of the text with copies; the id of `_COPY` stands for each copy.
        parts: The `Part` of each id in ``template``.
        kept_prompt: Ids of a prompt that the pooling leaves out. In an attribution, it is no part of the
            text, and stays when parts are deleted.
    """

    text: str
    ids_before: tuple[int, ...]
    parts_before: tuple[int, ...]
    template: tuple[int, ...]
    parts: tuple[int, ...]
    kept_prompt: tuple[int, ...] = ()

    @property
    def divided_parts(self) -> tuple[int, ...]:
        """The `Part` of each id that an attribution divides: those behind a prompt that stays."""
        return self.parts[len(self.kept_prompt) :]

    def with_copies(self, token_id: int) -> tuple[int, ...]:
        """Return the text's content ids, with copies of a token inserted."""
        return tuple(token_id if template_id == _COPY.id else template_id for template_id in self.template)


def place_copies(encoder: IdEncoder, settings: ExplainSettings, texts: Sequence[str]) -> list[PlacedCarrier]:
    """Choose where the copies go in each text, and return the carriers in the order of the texts."""
    carriers = []
    for number, (text, tokenized) in enumerate(zip(texts, encoder.tokenize(texts), strict=True)):
        path: tuple[int, ...] = ()  # for each copy, the number of words before it; for random placement only
        if settings.placement is Placement.RANDOM:
            # The seed includes the text's number but not the token, so that all tokens get the same gaps.
            generator = np.random.default_rng([settings.seed, _GAPS_KEY, number, 0])
            draw = partial(generator.integers, endpoint=True)
            path = draw_path(draw, len(tokenized.words), settings.copies)
        prompt_length = len(tokenized.head)  # the head has the ids of the prompt
        template = copies_as_ids(_COPY, tokenized, settings.placement, settings.copies, path)
        carriers.append(
            PlacedCarrier(
                text=text,
                ids_before=tokenized.ids,
                parts_before=_find_parts(tokenized.ids, prompt_length),
                template=template,
                parts=_find_parts(template, prompt_length),
                kept_prompt=find_kept_prompt(encoder, tokenized),
            )
        )
    return carriers


def _find_parts(ids: Sequence[int], prompt_length: int) -> tuple[int, ...]:
    # Returns the `Part` of each id; the first ``prompt_length`` ids are the prompt.
    parts = [int(Part.PROMPT)] * prompt_length
    for token_id in ids[prompt_length:]:
        part = Part.COPIES if token_id == _COPY.id else Part.CARRIER
        parts.append(int(part))
    return tuple(parts)


@dataclass(frozen=True, slots=True)
class Material:
    """The texts of an explanation.

    Attributes:
        carriers: The texts to which copies are added.
        anchors: The texts that the carriers are compared with.
        source: Where the carriers come from, for display.
    """

    carriers: list[PlacedCarrier]
    anchors: list[str]
    source: str


def choose_texts(
    encoder: IdEncoder,
    settings: ExplainSettings,
    run: Run | None,
    texts: Sequence[str] | None,
    corpus: Sentences,
) -> Material:
    """Choose the texts of an explanation.

    Args:
        encoder: The model. Texts that are too long for the model are not used.
        settings: The settings of the explanation.
        run: Run whose carriers are used. If None, the carriers come from the corpus.
        texts: Carriers that the user passed. If None, the carriers come from the run or the corpus.
        corpus: The sentences from which the anchors are drawn, and the carriers without a run.

    Returns:
        The carriers, the anchors, and the name of their source.

    Raises:
        InputError: A text that the user passed cannot be used, or no text of the run or corpus fits into the
            model.
    """
    order = np.random.default_rng([settings.seed]).permutation(len(corpus)).tolist()
    shuffled_texts = list(dict.fromkeys(corpus.texts[index] for index in order))  # each once
    if run is None:
        carrier_texts = _choose_corpus_carriers(shuffled_texts, settings)
        source = corpus.source
    else:
        carrier_texts = run.plan.texts
        source = f"run {run.path.name}"
    anchors = _choose_anchors(encoder, shuffled_texts, texts or carrier_texts)
    if not anchors:
        raise InputError(
            f"{corpus.source} has no sentence that fits into {encoder.name} and is no carrier: pass more or "
            "shorter sentences"
        )
    if texts is not None:
        return Material(_place_user_texts(encoder, settings, texts), anchors, "given texts")
    placed = place_copies(encoder, settings, carrier_texts)
    # Leave out texts without tokens, and texts that are too long with copies. A copy of any token is one id,
    # so the id 0 serves to find out whether the copies fit.
    fitting = [carrier for carrier in placed if carrier.ids_before and encoder.fits(carrier.with_copies(0))]
    if not fitting:
        raise InputError(
            f"no sentence of {source} fits into {encoder.name} with {settings.copies} copies added: use "
            "fewer copies or shorter sentences"
        )
    return Material(fitting[: settings.carriers], anchors, source)


def _choose_corpus_carriers(shuffled_texts: Sequence[str], settings: ExplainSettings) -> list[str]:
    # Returns twice as many carriers as needed, because some may not fit into the model. At most half of the
    # texts become carriers, so that enough texts are left as anchors. `open_ended` removes the full stop,
    # after which copies have a different effect.
    most_carriers = min(2 * settings.carriers, max(1, len(shuffled_texts) // 2))
    shortest = set(sorted(shuffled_texts, key=len)[:most_carriers])
    in_random_order = [open_ended(text) for text in shuffled_texts if text in shortest]
    return list(dict.fromkeys(in_random_order))  # each once: two texts may differ only in their full stop


def _choose_anchors(encoder: IdEncoder, texts: Sequence[str], carriers: Sequence[str]) -> list[str]:
    # Returns texts that are no carriers. The carriers have lost their full stops, so texts are compared
    # without their own.
    carriers_without_stop = {open_ended(text) for text in carriers}
    candidates = [text for text in texts if open_ended(text) not in carriers_without_stop]
    anchors = []
    for text, tokenized in zip(candidates, encoder.tokenize(candidates), strict=True):
        if tokenized.words and encoder.fits(tokenized.ids):
            anchors.append(text)
    return anchors[:_MAX_ANCHORS]


def _place_user_texts(
    encoder: IdEncoder, settings: ExplainSettings, texts: Sequence[str]
) -> list[PlacedCarrier]:
    carriers = place_copies(encoder, settings, texts)
    for carrier in carriers:
        text = carrier.text[:_SHOWN_CHARACTERS]
        if not carrier.ids_before:
            raise InputError(f"the text {text!r} has no tokens: leave it out")
        if not encoder.fits(carrier.with_copies(0)):
            raise InputError(
                f"the text {text!r} with {settings.copies} copies of a token has {len(carrier.template)} "
                f"tokens, more than {encoder.name} can read ({encoder.max_length} including special tokens): "
                "shorten it or use fewer copies"
            )
    return carriers


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The vectors that the carriers' vectors are compared with.

    Attributes:
        direction: Mean direction of the pooled states of single tokens, shape (P,); None if unknown.
        anchors: Unit vectors of the anchors, shape (anchors, d).
        mean_similarity: Mean cosine of carriers and anchors. Two texts are unrelated if their cosine is below
            it.
    """

    direction: Floats | None
    anchors: Floats
    mean_similarity: float

    def find_unrelated(self, vector: Floats) -> NDArray[np.bool_]:
        """Return a mask of the anchors that are unrelated to a vector, shape (anchors,).

        An anchor is unrelated if its similarity is below `mean_similarity`. If there is no such anchor,
        the least similar anchors count as unrelated.
        """
        similarities = self.anchors @ unit_vectors(vector)
        is_unrelated: NDArray[np.bool_] = similarities < self.mean_similarity
        if not is_unrelated.any():
            is_unrelated = np.asarray(similarities == similarities.min())
        return is_unrelated


def _observe(before: Inside, after: Inside, surroundings: Surroundings) -> dict[str, Floats]:
    """Compare the internal states of the model for a carrier with and without copies.

    Returns:
        The measures of this carrier, keyed by name: a number, shape (), or one value per layer, shape
        (layers,). `statistics.AREAS` describes each measure. Measures that need internal states that the
        model does not expose are left out.
    """
    measures: dict[str, Any] = {}
    if after.attention is not None:
        # The attention that the copies receive from all positions, and from all positions except the copies.
        # Both are averaged over heads.
        from_all = _average_attention_on_copies(after.attention, after.part_of_token)
        from_others = _average_attention_on_copies(after.attention, after.part_of_token, from_copies=False)
        measures["attention_received"] = from_all.mean(axis=1)
        measures["attention_from_others"] = from_others.mean(axis=1)
    if before.hidden is not None and after.hidden is not None:
        # The states of the carrier's own tokens, and of the copies, shape (layers + 1, tokens, D).
        own_before = before.hidden[:, before.part_of_token == Part.CARRIER].astype(np.float64)
        own_after = after.hidden[:, after.part_of_token == Part.CARRIER].astype(np.float64)
        copies = after.hidden[:, after.part_of_token == Part.COPIES].astype(np.float64)
        measures["copies_norm"] = np.linalg.norm(copies, axis=-1).mean(axis=1)
        if own_before.shape[1]:  # a carrier may consist of its prompt alone
            measures["carrier_cosine_drift"] = (1 - _compute_cosine(own_before, own_after)).mean(axis=1)
            distances = np.linalg.norm(own_after - own_before, axis=-1)
            measures["carrier_euclidean_drift"] = distances.mean(axis=1)
    if after.pooled is not None and after.pooled_by_part is not None:
        # The pooled states are the sum of one vector from each `Part` of the input.
        from_copies = after.pooled_by_part[Part.COPIES]
        square = float(after.pooled @ after.pooled)
        lengths = np.linalg.norm(after.pooled_by_part, axis=1)
        # The component of the copies' vector along the pooled states, divided by the length of the pooled
        # states.
        measures["pooling_share"] = from_copies @ after.pooled / square
        # The length of the copies' vector, relative to the sum of the lengths of all parts' vectors.
        measures["pooling_norm_share"] = lengths[Part.COPIES] / lengths.sum()
        if surroundings.direction is not None:
            # The components of the copies' vector and of the pooled states along the mean direction, both
            # relative to the length of the pooled states.
            measures["pooling_toward_mean"] = from_copies @ surroundings.direction / np.sqrt(square)
            measures["vector_toward_mean"] = after.pooled @ surroundings.direction / np.sqrt(square)
    # How much closer the copies bring the text's vector to unrelated anchors, on average.
    unrelated = surroundings.find_unrelated(before.vector.astype(np.float64))
    movement = exact_unit_vectors(after.vector) - exact_unit_vectors(before.vector)
    measures["lift_sentences"] = (surroundings.anchors[unrelated] @ movement).mean()
    return {name: np.asarray(value, dtype=np.float64) for name, value in measures.items()}


def _average_attention_on_copies(
    attention: Floats, part_of_token: NDArray[np.intp], *, from_copies: bool = True
) -> Floats:
    """Return the share of their attention that tokens give to the copies, on average, shape (layers, heads).

    ``attention`` and ``part_of_token`` are those of `Inside`. If ``from_copies`` is false, the attention that
    the copies themselves give is left out.
    """
    # Number of tokens in each part.
    attending_counts = np.bincount(part_of_token, minlength=len(Part)).astype(np.float64)
    if not from_copies:
        attending_counts[Part.COPIES] = 0
    # ``attention`` has a mean for each attending part. Weighting each part by its number of tokens gives the
    # mean over all tokens. A part without tokens is left out, because its attention is NaN.
    has_tokens = attending_counts > 0
    weights = attending_counts[has_tokens] / attending_counts.sum()
    shares: Floats = attention[:, :, has_tokens, Part.COPIES] @ weights
    return shares


def _compute_cosine(left: Floats, right: Floats) -> Any:
    # Returns the cosine of each pair of states; the last axis holds the components of a state.
    products_of_norms = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    products = (left * right).sum(axis=-1)
    cosines = np.ones_like(products)  # a state of zeros has no direction, and counts as unchanged
    return np.divide(products, products_of_norms, out=cosines, where=products_of_norms > 0)


# Maximum memory, in bytes, for the hidden states of the carriers without copies.
HELD_BYTES = 2**27


def measure(
    inspector: Inspector,
    carriers: Sequence[PlacedCarrier],
    tokens: Sequence[int],
    surroundings: Surroundings,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Measure a token and its benign tokens on all carriers.

    Args:
        inspector: Gives access to the internal states of the model.
        carriers: The carriers.
        tokens: Id of the token, followed by the ids of its benign tokens.
        surroundings: The vectors that the carriers' vectors are compared with.
        progress: Called after each token has been measured on a group of carriers.

    Returns:
        A dict with three keys.

        ``values`` holds the measures that are available for every token and carrier, keyed by token id and
        then by name, each of shape (carriers, layers) or (carriers,).

        ``heads`` holds the share of attention that the copies receive, keyed by token id, each of shape
        (carriers, layers, heads). If the model does not expose its attention, ``heads`` is empty.

        ``distances`` maps the id of the token, which is its only key, to a dict of the distances between
        tokens, keyed by name, each of shape (tokens, carriers, layers + 1). The first row has the distances
        of the token from the mean of its benign tokens. Each further row has the distances of a benign token
        from the mean of the remaining benign tokens. If the model does not expose its hidden states, the dict
        of distances is empty.
    """
    group_size = _count_carriers_at_a_time(inspector, carriers)
    observed: dict[int, list[dict[str, Floats]]] = {token_id: [] for token_id in tokens}
    heads: dict[int, list[Floats]] = {token_id: [] for token_id in tokens}
    distances: list[Floats] = []
    total = len(tokens) * len(carriers)
    done = 0
    progress(Progress("inside", 0, total))
    for start in range(0, len(carriers), group_size):
        group = carriers[start : start + group_size]
        before = inspector.look(
            [carrier.ids_before for carrier in group],
            [carrier.parts_before for carrier in group],
            Part.SPECIAL,
        )
        states_of_tokens = []
        for token_id in tokens:
            contents = [carrier.with_copies(token_id) for carrier in group]
            after = inspector.look(contents, [carrier.parts for carrier in group], Part.SPECIAL)
            for carrier_before, carrier_after in zip(before, after, strict=True):
                observed[token_id].append(_observe(carrier_before, carrier_after, surroundings))
                if carrier_after.attention is not None:
                    heads[token_id].append(
                        _average_attention_on_copies(carrier_after.attention, carrier_after.part_of_token)
                    )
            copy_states = _average_states_of_copies(after)
            if copy_states is not None:
                states_of_tokens.append(copy_states)
            done += len(group)
            progress(Progress("inside", done, total, done, done))
        exposes_states = len(states_of_tokens) == len(tokens)  # whether the model exposes its hidden states
        if exposes_states:
            distances.append(_measure_distances_from_benign(states_of_tokens))
    # A token's attention is left out unless it was measured on all carriers.
    heads_by_token = {
        token_id: np.stack(shares) for token_id, shares in heads.items() if len(shares) == len(carriers)
    }
    return {
        "values": _keep_common_measures(observed),
        "heads": heads_by_token,
        "distances": {tokens[0]: _join_distances(distances)},
    }


def _count_carriers_at_a_time(inspector: Inspector, carriers: Sequence[PlacedCarrier]) -> int:
    # The hidden states of a group of carriers without copies are held in memory while all tokens are measured
    # in it. Those of the longest carrier are the largest.
    longest = max(carriers, key=lambda carrier: len(carrier.ids_before))  # ``before`` copies are inserted
    part_of_ids_around = Part.SPECIAL  # of the ids that the model itself puts around a text
    (inside,) = inspector.look([longest.ids_before], [longest.parts_before], part_of_ids_around)
    if inside.hidden is None:  # the model exposes no hidden states, so none are held
        return len(carriers)
    return max(1, HELD_BYTES // inside.hidden.nbytes)


def _average_states_of_copies(insides: Sequence[Inside]) -> Floats | None:
    # Returns the mean hidden state of the copies in each carrier, shape (carriers, layers + 1, D).
    means = []
    for inside in insides:
        if inside.hidden is None:
            return None
        states = inside.hidden[:, inside.part_of_token == Part.COPIES]  # shape (layers + 1, copies, D)
        means.append(states.astype(np.float64).mean(axis=1))
    return np.stack(means)


def _measure_distances_from_benign(states: Sequence[Floats]) -> Floats:
    """Return how far the copies' mean hidden states are from those of benign tokens.

    ``states`` has one array for each token, shape (carriers, layers + 1, D): first of the examined token,
    then of each benign token.

    Returns:
        Cosine distances and Euclidean distances of each token from the mean of the benign tokens (for a
        benign token, of the remaining benign tokens), shape (2, tokens, carriers, layers + 1).
    """
    benign = np.stack(states[1:])  # shape (benign tokens, carriers, layers + 1, D)
    centres = [benign.mean(axis=0)]
    # A benign token is compared with the mean of the remaining benign tokens.
    centres += [np.delete(benign, index, axis=0).mean(axis=0) for index in range(len(benign))]
    cosine_distances = []
    euclidean_distances = []
    for token_states, centre in zip(states, centres, strict=True):
        cosine_distances.append(1 - _compute_cosine(token_states, centre))
        euclidean_distances.append(np.linalg.norm(token_states - centre, axis=-1))
    return np.stack([cosine_distances, euclidean_distances])


def _join_distances(distances_of_groups: Sequence[Floats]) -> dict[str, Floats]:
    # Each group of carriers has distances as `_measure_distances_from_benign` returns them, shape (2, tokens,
    # carriers, layers + 1): first cosine, then Euclidean distances.
    if not distances_of_groups:
        return {}
    cosine_distances, euclidean_distances = np.concatenate(distances_of_groups, axis=2)
    return {"copies_cosine_distance": cosine_distances, "copies_euclidean_distance": euclidean_distances}


def _keep_common_measures(
    observed: Mapping[int, Sequence[Mapping[str, Floats]]],
) -> dict[int, dict[str, Floats]]:
    # Returns for each token id, keyed by name, the measures that all tokens have on all carriers, each of
    # shape (carriers, ...). For each token id, ``observed`` has one dict per carrier with the measures by
    # name.
    all_measures = [measures for by_carrier in observed.values() for measures in by_carrier]
    common_names = set.intersection(*(set(measures) for measures in all_measures))
    stacked = {}
    for token_id, by_carrier in observed.items():
        names = [name for name in by_carrier[0] if name in common_names]  # in the order of the measures
        stacked[token_id] = {name: np.stack([measures[name] for measures in by_carrier]) for name in names}
    return stacked
