"""A picture of a run: size against speed, as SVG."""

import math
import statistics
from html import escape

WIDTH, HEIGHT, MARGIN, TOP = 470, 420, 60, 50


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for decade in decades for digit in (1, 2, 5) if low <= (value := digit * 10.0**decade) <= high]


def panel(run: dict, way: str, left: float) -> str:
    points = [
        (run["data"] / statistics.median(row[way]) / 1e6, 100 * row["bytes"] / run["data"], name)
        for name, row in run["rows"].items()
    ]
    xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
    low_x, high_x, low_y, high_y = min(xs) / 1.5, max(xs) * 1.5, min(ys) / 1.3, max(ys) * 1.3
    inner_width, inner_height = WIDTH - MARGIN - 15, HEIGHT - TOP - 45

    def place(x: float, y: float) -> tuple[float, float]:
        across = math.log(x / low_x) / math.log(high_x / low_x)
        down = math.log(y / low_y) / math.log(high_y / low_y)
        return left + MARGIN + across * inner_width, TOP + inner_height - down * inner_height

    bottom, right = TOP + inner_height, left + MARGIN + inner_width
    parts = [
        f'<text x="{left + MARGIN}" y="{TOP - 12}" font-weight="bold">{way}</text>',
        f'<path d="M{left + MARGIN} {TOP}V{bottom}H{right}" fill="none" stroke="#888"/>',
        f'<text x="{right}" y="{bottom + 36}" text-anchor="end">MB of the model per second, faster to the right</text>',
    ]
    for x in ticks(low_x, high_x):
        across, _ = place(x, low_y)
        parts.append(f'<path d="M{across:.1f} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{across:.1f}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>')
    for y in ticks(low_y, high_y):
        _, down = place(low_x, y)
        parts.append(f'<path d="M{left + MARGIN} {down:.1f}H{right}" stroke="#ddd"/>')
        parts.append(f'<text x="{left + MARGIN - 6}" y="{down + 4:.1f}" text-anchor="end">{y:g} %</text>')
    taken: list[tuple[float, float]] = []
    for x, y, name in sorted(points, key=lambda point: point[1]):
        across, down = place(x, y)
        own = name.startswith("deltachain")
        colour = "#c0392b" if own else "#34495e"
        # A label goes to the side that has room, and moves down while another one is in its way.
        before = across > left + MARGIN + inner_width * 0.6
        label = down + 4
        while any(abs(label - other) < 11 and abs(across - at) < 150 for at, other in taken):
            label += 11
        taken.append((across, label))
        parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" fill="{colour}"/>')
        anchor, shift = ("end", -7) if before else ("start", 7)
        weight = ' font-weight="bold"' if own else ""
        parts.append(
            f'<text x="{across + shift:.1f}" y="{label:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>{escape(name)}</text>'
        )
    return "\n".join(parts)


def plot(run: dict) -> str:
    threads = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"
    title = f"{run['pair']}, {run['data'] / 1e6:.0f} MB, {threads}: size of the delta in % of the model (smaller is lower), against speed"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="20" font-size="12">{escape(title)}</text>',
        panel(run, "encode", 0),
        panel(run, "decode", WIDTH),
        "</svg>",
    ]) + "\n"
