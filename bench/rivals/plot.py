"""A plot of a run: size against speed, as SVG that follows the page's light or dark mode."""

import math
import statistics
from html import escape

WIDTH, HEIGHT, MARGIN, TOP = 720, 460, 60, 50
# The colours of docs/pictures.
STYLE = """<style>
text { fill: #1f2328 }
.axis { fill: none; stroke: #59636e }
.grid { stroke: #59636e; opacity: 0.25 }
.rival { fill: #59636e }
.own { fill: #bf5b00 }
text.own { font-weight: bold }
.to { stroke: #59636e; opacity: 0.6 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc }
  .axis, .grid, .to { stroke: #9198a1 }
  .rival { fill: #9198a1 }
  .own { fill: #e8954a }
}
</style>"""


def ticks(low: float, high: float) -> list[float]:
    """Returns 1, 2 and 5 of each decade."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    return [value for decade in decades for digit in (1, 2, 5) if low <= (value := digit * 10.0**decade) <= high]


def label(
    across: float, down: float, name: str, boxes: list, low: float, high: float, bottom: float
) -> tuple[str, float, float]:
    """Finds a place beside a dot where the name covers nothing, or as little as possible."""
    width, best = 6.9 * len(name), None
    for far in range(0, 130, 7):
        for anchor, x, y in (
            ("start", across + 8, down + 4 - far), ("end", across - 8, down + 4 - far),
            ("start", across + 8, down + 4 + far), ("end", across - 8, down + 4 + far),
            ("middle", across, down - 10 - far), ("middle", across, down + 17 + far),
        ):
            begin = {"start": x, "middle": x - width / 2, "end": x - width}[anchor]
            box = (begin, y - 11, begin + width, y + 3)
            covered = sum(box[0] < r and x0 < box[2] and box[1] < b and t < box[3] for x0, t, r, b in boxes)
            covered += 10 * (begin < low or begin + width > high or not TOP < y - 11 < y + 3 < bottom)
            if best is None or covered < best[0]:
                best = covered, (anchor, x, y), box
    boxes.append(best[2])
    return best[1]


def panel(run: dict, way: str) -> str:
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
        return MARGIN + across * inner_width, TOP + inner_height - down * inner_height

    bottom, right = TOP + inner_height, MARGIN + inner_width
    parts = [
        f'<text x="{MARGIN}" y="{TOP - 12}" font-weight="bold">{way}</text>',
        f'<path d="M{MARGIN} {TOP}V{bottom}H{right}" class="axis"/>',
        f'<text x="{right}" y="{bottom + 36}" text-anchor="end">MB of the model per second, faster to the right</text>',
    ]
    for x in ticks(low_x, high_x):
        across, _ = place(x, low_y)
        parts.append(f'<path d="M{across:.1f} {TOP}V{bottom}" class="grid"/>')
        parts.append(f'<text x="{across:.1f}" y="{bottom + 16}" text-anchor="middle">{x:g}</text>')
    for y in ticks(low_y, high_y):
        _, down = place(low_x, y)
        parts.append(f'<path d="M{MARGIN} {down:.1f}H{right}" class="grid"/>')
        parts.append(f'<text x="{MARGIN - 6}" y="{down + 4:.1f}" text-anchor="end">{y:g} %</text>')
    dots = [place(x, y) for x, y, _ in points]
    boxes = [(across - 5, down - 5, across + 5, down + 5) for across, down in dots]
    # The labels of our methods first: their dots lie close together.
    order = sorted(zip(dots, points), key=lambda item: (not item[1][2].startswith("deltachain"), item[0]))
    for (across, down), (_, _, name) in order:
        kind = "own" if name.startswith("deltachain") else "rival"
        name = name.removeprefix("deltachain ")
        anchor, x, y = label(across, down, name, boxes, MARGIN, right, bottom)
        if abs(y - 4 - down) > 14:
            to = y + 3 if y < down else y - 11
            parts.append(f'<path d="M{across:.1f} {down:.1f}L{x:.1f} {to:.1f}" class="to"/>')
        parts.append(f'<circle cx="{across:.1f}" cy="{down:.1f}" r="4" class="{kind}"/>')
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(name)}</text>')
    return "\n".join(parts)


def plot(run: dict) -> str:
    threads = f"{run['threads']} thread{'s' if run['threads'] > 1 else ''}"
    title = f"{run['pair']}, {run['data'] / 1e6:.0f} MB, {threads}: size of the delta in % of the model, against speed"
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {2 * HEIGHT + 40}" width="{WIDTH}" '
        f'height="{2 * HEIGHT + 40}" font-family="sans-serif" font-size="12" role="img" aria-labelledby="title">',
        STYLE,
        f'<text id="title" x="{MARGIN}" y="20" font-size="14">{escape(title)}</text>',
        f'<text x="{MARGIN}" y="40" class="own">deltachain</text>',
        f'<text x="{MARGIN + 85}" y="40" class="rival">others</text>',
        '<g transform="translate(0 30)">', panel(run, "encode"), "</g>",
        f'<g transform="translate(0 {HEIGHT + 35})">', panel(run, "decode"), "</g>",
        "</svg>",
    ]) + "\n"
