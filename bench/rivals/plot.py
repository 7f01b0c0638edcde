"""A picture of a run: size against speed, as SVG."""

import math
import statistics
from html import escape

WIDTH, HEIGHT, MARGIN, TOP = 520, 480, 60, 50


def ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of each decade."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for decade in decades for digit in (1, 2, 5) if low <= (value := digit * 10.0**decade) <= high]


def label(across: float, down: float, name: str, boxes: list, low: float, high: float) -> tuple[str, float, float]:
    """A place beside a dot where the name covers nothing that is drawn, or the one that covers least."""
    width, best = 6.2 * len(name), None
    for far in range(0, 60, 6):
        for anchor, x, y in (
            ("start", across + 7, down + 4 - far), ("end", across - 7, down + 4 - far),
            ("start", across + 7, down + 4 + far), ("end", across - 7, down + 4 + far),
        ):
            begin = x if anchor == "start" else x - width
            box = (begin, y - 9, begin + width, y + 2)
            covered = sum(box[0] < r and x0 < box[2] and box[1] < b and t < box[3] for x0, t, r, b in boxes)
            covered += 10 * (begin < low or begin + width > high)
            if best is None or covered < best[0]:
                best = covered, (anchor, x, y), box
    boxes.append(best[2])
    return best[1]


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
    dots = [place(x, y) for x, y, _ in points]
    boxes = [(across - 5, down - 5, across + 5, down + 5) for across, down in dots]
    for (across, down), (_, _, name) in sorted(zip(dots, points)):
        own = name.startswith("deltachain")
        colour = "#c0392b" if own else "#34495e"
        anchor, x, y = label(across, down, name, boxes, left + MARGIN, right)
        weight = ' font-weight="bold"' if own else ""
        parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" fill="{colour}"/>')
        parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>{escape(name)}</text>'
        )
    return "\n".join(parts)


def plot(run: dict) -> str:
    threads = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"
    title = (
        f"{run['pair']}, {run['data'] / 1e6:.0f} MB, {threads}: "
        "size of the delta in % of the model (smaller is lower), against speed"
    )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="10">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{MARGIN}" y="20" font-size="12">{escape(title)}</text>',
        panel(run, "encode", 0),
        panel(run, "decode", WIDTH),
        "</svg>",
    ]) + "\n"
