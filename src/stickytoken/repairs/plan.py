"""Choose a strategy for every token. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stickytoken.encoders.protocol import IdEncoder
from stickytoken.errors import InputError, RepairError
from stickytoken.insertion import Token
from stickytoken.measurement.stage import ProgressCallback, ignore_progress
from stickytoken.methods.job import Tokens
from stickytoken.repairs.result import ROWS, TOKENIZER, CurveRecord, Strategy
from stickytoken.repairs.tokenizer_edit import merge_pairs, renamed_model, word_pieces
from stickytoken.validation import set_whole_numbers, shown
from stickytoken.vocabulary import Vocabulary

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from tokenizers import Tokenizer

    from stickytoken.encoders.sentence_transformer import SentenceTransformerEncoder


_ALL_TEXTS = "the model itself puts it into every text, so a new row would change every vector"
_REASONS = {
    Strategy.RELATIVES: "a new row from entries with similar spelling",
    Strategy.UNREACHABLE: "text falls into its pieces, and nothing else changes",
    Strategy.PLAIN_SPECIALS: "a special token: as text it becomes plain text, and the model's own stays",
    Strategy.COLLAPSE: "asked for: runs of any word are cut to two",
    Strategy.CENTRE: "asked for: the mean direction is removed from every vector",
}


@dataclass(frozen=True, slots=True)
class TokenFacts:
    """What the choice for a token depends on.

    Attributes:
        token_id: its id.
        token: its vocabulary string.
        text: its decoded text.
        special: whether the tokenizer matches it in text before anything else.
        templated: whether the model puts it around every text.
        unsplittable: why text cannot fall into its pieces; None if it can.
    """

    token_id: int
    token: str
    text: str
    special: bool
    templated: bool
    unsplittable: str | None


@dataclass(frozen=True, slots=True)
class TokenPlan:
    """What to do about a token.

    Attributes:
        facts: the token.
        candidates: strategies to try, the preferred one first; the first is taken if there is one alone.
        reason: why, in a few words.
    """

    facts: TokenFacts
    candidates: tuple[Strategy, ...]
    reason: str


def plan_tokens(asked: Strategy, tokens: Sequence[TokenFacts], rows_writable: bool) -> list[TokenPlan]:
    """Choose what to do about every token.

    A row from entries with similar spelling comes before pieces: it stays closer to the true rows of planted
    words in lift and meaning, and changes a clean score less (docs/benchmarks.md, Repairs).
    """
    if asked is Strategy.AUTO:
        return [_automatic(token, rows_writable) for token in tokens]
    return [_asked(token, asked) for token in tokens]


def _automatic(token: TokenFacts, rows_writable: bool) -> TokenPlan:
    if token.special:
        return TokenPlan(token, (Strategy.PLAIN_SPECIALS,), _REASONS[Strategy.PLAIN_SPECIALS])
    if token.unsplittable is not None:
        if token.templated:
            raise _unsuited(token, f"{token.unsplittable}; {_ALL_TEXTS}")
        return TokenPlan(token, ROWS, f"a new row, because {token.unsplittable}")
    if token.templated:
        return TokenPlan(token, (Strategy.UNREACHABLE,), f"text falls into its pieces; {_ALL_TEXTS}")
    if not rows_writable:
        reason = "text falls into its pieces; no row can be written into these weights"
        return TokenPlan(token, (Strategy.UNREACHABLE,), reason)
    return TokenPlan(token, (Strategy.RELATIVES, Strategy.UNREACHABLE), _REASONS[Strategy.RELATIVES])


def _asked(token: TokenFacts, asked: Strategy) -> TokenPlan:
    if asked in ROWS and token.templated:
        raise _unsuited(token, _ALL_TEXTS, asked, "use plain-specials or auto")
    if asked is Strategy.PLAIN_SPECIALS and not token.special:
        raise _unsuited(token, "it is not a special token", asked, "use auto, or leave the token out")
    if asked is Strategy.UNREACHABLE and token.special:
        raise _unsuited(token, "it is a special token", asked, "use plain-specials or auto")
    if asked is Strategy.UNREACHABLE and token.unsplittable is not None:
        raise _unsuited(token, token.unsplittable, asked, "use auto, or leave the token out")
    return TokenPlan(token, (asked,), _REASONS.get(asked, "asked for"))


def _unsuited(
    token: TokenFacts, reason: str, asked: Strategy | None = None, advice: str = "leave the token out"
) -> RepairError:
    tried = "" if asked is None else f" by {asked}"
    return RepairError(
        f"token {token.token!r} (id {token.token_id}) cannot be repaired{tried}: {reason}; {advice}"
    )


@dataclass(frozen=True, slots=True)
class RowContext:
    """What rows are made from.

    Attributes:
        model: the model; it is not changed.
        texts: texts that tokens are put into; the shorter ones are used.
        seed: seed of every choice among texts, places and entries.
        progress: told of every step.
        avoided: entries that serve no other as a piece or a relative, because they may be sticky.
    """

    model: SentenceTransformer
    texts: Sequence[str]
    seed: int = 42
    progress: ProgressCallback = ignore_progress
    avoided: Collection[int] = ()


_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 150, 16, 44
_COLORS = {"before": "#b5402a", "after": "#00609a", "ordinary token": "#57606f"}
_TICKS = 4


@dataclass(frozen=True)
class MeanCurves:
    """Curves averaged over the repaired tokens.

    Attributes:
        copies: numbers of copies, 0 first.
        lines: mean similarities by name, in the order of the legend.
    """

    copies: tuple[int, ...]
    lines: dict[str, list[float]]


def mean_curves(curves: Sequence[CurveRecord]) -> MeanCurves | None:
    """Average curves; None without a curve that has values."""
    usable = [curve for curve in curves if curve.before and curve.after and curve.ordinary]
    if not usable:
        return None
    lines = zip(*((curve.before, curve.after, curve.ordinary) for curve in usable), strict=True)
    means = [[sum(values) / len(values) for values in zip(*line, strict=True)] for line in lines]
    return MeanCurves(tuple(usable[0].copies), dict(zip(_COLORS, means, strict=True)))


def drawn(curves: MeanCurves) -> str:
    """Draw the curves; the numbers of copies are spaced evenly."""
    values = [value for line in curves.lines.values() for value in line]
    low, high = min(0.0, *values), max(values)
    room = (high - low) * 0.08 or 1.0
    low, high = low - (room if low < 0 else 0), high + room
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(curves.copies) - 1)

    def x(place: int) -> float:
        return _LEFT + step * place

    def y(value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="#3b4350" role="img">',
        "<title>Similarity of unrelated texts by number of copies, before and after the repair</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>',
    ]
    for tick in range(_TICKS + 1):
        value = low + (high - low) * tick / _TICKS
        parts.append(
            f'<path d="M{_LEFT} {y(value):.1f}H{_WIDTH - _RIGHT}" stroke="#e3e7ec"/>'
            f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>'
        )
    parts += [
        f'<text x="{x(place):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{count}</text>'
        for place, count in enumerate(curves.copies)
    ]
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 8}" text-anchor="middle">copies in a text</text>')
    for place, (name, line) in enumerate(curves.lines.items()):
        points = " ".join(f"{x(k):.1f},{y(value):.1f}" for k, value in enumerate(line))
        dashes = ' stroke-dasharray="5 4"' if name == "ordinary token" else ""
        height = _TOP + 16 + 20 * place
        edge = _WIDTH - _RIGHT + 14
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{_COLORS[name]}" stroke-width="2.5"{dashes}/>'
            f'<path d="M{edge} {height - 4}h22" stroke="{_COLORS[name]}" stroke-width="2.5"{dashes}/>'
            f'<text x="{edge + 28}" y="{height}">{name}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """Settings of a repair.

    Attributes:
        strategy: what to do about the tokens.
        verify: whether to measure the repaired model.
        neighbours: nearest rows of the embedding matrix to measure again, per repaired token.
        seed: seed of the rows, the random texts and the random placements; another one than that of the run.
    """

    strategy: Strategy = Strategy.AUTO
    verify: bool = True
    neighbours: int = 2
    seed: int = 4242

    def __post_init__(self) -> None:
        set_whole_numbers(self, {"neighbours": 0, "seed": 0})
        object.__setattr__(self, "strategy", _known_strategy(self.strategy))
        if not isinstance(self.verify, bool):
            raise InputError(f"verify is {shown(self.verify)}: pass True or False")


def _known_strategy(name: object) -> Strategy:
    try:
        return Strategy(name)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(Strategy)
        raise InputError(f"strategy is {shown(name)}: use one of {known}") from None


_CARRIER = "the river"
_COPIES = 4


@dataclass(frozen=True, slots=True)
class RepairedToken:
    """A token with the strategy that was chosen for it.

    Attributes:
        token_id: its id.
        token: its vocabulary string.
        text: its decoded text.
        strategy: what is done about it.
        reason: why.
        tried: lift beyond an ordinary token's of the strategies that were tried, in standard deviations.
    """

    token_id: int
    token: str
    text: str
    strategy: Strategy
    reason: str
    tried: tuple[tuple[Strategy, float], ...] = ()


@dataclass(frozen=True)
class Subject:
    """What is verified.

    Attributes:
        original: the model before the repair.
        repaired: the model after it, loaded from its folder.
        folder: that folder.
        tokenizer: the folder of its tokenizer.
        vocabulary: vocabulary before the repair.
        tokens: the repaired tokens.
    """

    original: SentenceTransformerEncoder
    repaired: SentenceTransformerEncoder
    folder: Path
    tokenizer: Path
    vocabulary: Vocabulary
    tokens: tuple[RepairedToken, ...]

    @property
    def ids(self) -> list[int]:
        """Ids of the repaired tokens."""
        return [token.token_id for token in self.tokens]

    @property
    def strategies(self) -> set[Strategy]:
        """The strategies that were used."""
        return {token.strategy for token in self.tokens}


def as_measured(encoder: IdEncoder, tokens: Sequence[RepairedToken]) -> Tokens:
    """Say how the copies of repaired tokens go into a text.

    Where a repair changes how text is tokenized, copies must go in as text: as separate words, unless only
    copies without spaces become the token.
    """
    found = Tokens([], [], [])
    for each in tokens:
        if each.strategy not in TOKENIZER:
            found.as_ids.append(Token(each.token_id, each.text))
        elif _count(encoder, each, each.text) > _count(encoder, each, f" {each.text.strip()}"):
            found.glued.append(Token(each.token_id, each.text))
        else:
            found.written.append(Token(each.token_id, each.text.strip()))
    return found


def _count(encoder: IdEncoder, token: RepairedToken, copy: str) -> int:
    (ids,) = encoder.tokenizer.encode_many([_CARRIER + copy * _COPIES])
    return ids.count(token.token_id)


# Stands before the number of a removed entry. The names of other entries do not hold it.
_REMOVED = "\U0010fffd\U0010fffd"


def pieces_of(backend: Tokenizer, ids: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Tokenize the text of entries without any of them.

    Args:
        backend: the pipeline of the model's tokenizer; it is not changed.
        ids: the entries.

    Returns:
        Ids of the pieces, by id of the entry; empty for an added token, which is matched before text is cut,
        and for an entry whose text cannot be written with other entries.
    """
    from tokenizers import Tokenizer

    names = {token_id: name for token_id in ids if (name := backend.id_to_token(token_id)) is not None}
    pipeline = json.loads(backend.to_str())
    added = {token["id"] for token in pipeline["added_tokens"]}
    model = _without(pipeline["model"], names)
    unknown = _unknown_id(model, backend)
    bare = Tokenizer.from_str(json.dumps({**_bare(pipeline), "model": model}))
    found: dict[int, tuple[int, ...]] = dict.fromkeys(ids, ())
    for token_id, name in names.items():
        pieces = () if token_id in added else tuple(_tokenized(bare, model, name))
        found[token_id] = () if unknown in pieces else pieces
    return found


def _bare(pipeline: Mapping[str, Any]) -> dict[str, Any]:
    """Everything around the model of a pipeline, empty: names of entries are tokenized as they are."""
    parts = ("truncation", "padding", "normalizer", "pre_tokenizer", "post_processor", "decoder")
    return {"version": pipeline.get("version", "1.0"), "added_tokens": [], **dict.fromkeys(parts)}


def _without(model: Mapping[str, Any], names: Mapping[int, str]) -> dict[str, Any]:
    """Return the settings of a tokenizer's model with entries renamed, so that nothing reaches them."""
    kept = renamed_model(dict(model), {token_id: f"{_REMOVED}{token_id}" for token_id in names})
    if (pairs := merge_pairs(kept)) is not None:
        gone = set(names.values())
        kept["merges"] = [list(pair) for pair in pairs if gone.isdisjoint((*pair, "".join(pair)))]
    return kept


def _unknown_id(model: Mapping[str, Any], backend: Tokenizer) -> int | None:
    if isinstance(model["vocab"], list):
        found = model.get("unk_id")
        return None if found is None else int(found)
    token = model.get("unk_token")
    return None if token is None else backend.token_to_id(token)


def _tokenized(tokenizer: Tokenizer, model: Mapping[str, Any], name: str) -> Iterator[int]:
    """Tokenize the name of an entry by the model alone."""
    prefix = model.get("continuing_subword_prefix") or ""
    if model.get("type") == "WordPiece" and prefix and name.startswith(prefix):
        # The library would read the prefix as the beginning of a word.
        yield from (model["vocab"][piece] for piece in word_pieces(name, model["vocab"], prefix) or ())
        return
    yield from (token.id for token in tokenizer.model.tokenize(name))
