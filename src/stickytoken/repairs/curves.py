"""Draw symptom curves before and after a repair, as an SVG that any viewer shows. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stickytoken.repairs.record import CurveRecord

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
