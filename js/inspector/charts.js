/** Charts drawn by hand: columns, routes between versions, and the heat map. Tables beside them have the numbers. */
import { draw, make } from './dom.js';
import { binArea, span } from './changes.js';
import { grouped, percent } from './words.js';

/** Draws now, and again when the width changes. @param {HTMLElement} box @param {(width: number) => Element} drawing */
function fitted(box, drawing) {
  let width = 0;
  const show = () => {
    if (!box.isConnected && width > 0) return observer.disconnect();
    const now = Math.floor(box.clientWidth);
    if (now === width || now === 0) return undefined;
    width = now;
    return box.replaceChildren(drawing(width));
  };
  const observer = new ResizeObserver(show);
  observer.observe(box);
  return box;
}

/**
 * A chart of columns.
 * @param {{ label: string, value: number, shown: string, mark?: boolean, press?: () => void }[]} items
 * @param {{ title: string, height?: number }} options
 */
export function columns(items, { title, height = 150 }) {
  return fitted(make('div', { class: 'chart' }), (width) => {
    const most = Math.max(...items.map((item) => item.value), Number.MIN_VALUE);
    const [left, bottom, top] = [16, 22, 20];
    const room = height - bottom - top;
    const slot = (width - 2 * left) / Math.max(items.length, 1);
    const bar = Math.max(1, Math.min(64, slot * 0.72));
    const every = Math.ceil(items.reduce((all, item) => Math.max(all, item.label.length), 1) * 8 / slot);
    const widest = items.reduce((all, item) => Math.max(all, item.shown.length), 1) * 7;
    const picture = draw('svg', { width, height, role: 'img', 'aria-label': title });
    picture.append(draw('line', { x1: 0, x2: width, y1: height - bottom + 0.5, y2: height - bottom + 0.5, class: 'axis' }));
    items.forEach((item, i) => {
      const x = left + slot * i + slot / 2;
      const tall = item.value === 0 ? 0 : Math.max(1.5, (room * item.value) / most);
      const y = height - bottom - tall;
      const column = draw('g', { class: `column${item.mark ? ' mark' : ''}${item.press ? ' press' : ''}` },
        draw('title', { text: `${item.label}: ${item.shown}` }),
        draw('rect', { x: x - slot / 2, y: 0, width: slot, height, class: 'slot' }),
        draw('rect', { x: x - bar / 2, y, width: bar, height: tall, rx: Math.min(3, bar / 4) }));
      if (widest < slot || item.mark) column.append(draw('text', { x, y: y - 6, text: item.shown, class: 'value' }));
      if (i % every === 0) column.append(draw('text', { x, y: height - 6, text: item.label }));
      if (item.press) column.addEventListener('click', item.press);
      picture.append(column);
    });
    return picture;
  });
}

/**
 * Routes between versions as arcs; routes from nothing start above. The path is drawn over them.
 * @param {number[]} versions ascending
 * @param {{ from: number | null, to: number, chosen: boolean }[]} routes
 * @param {string} title
 */
export function arcs(versions, routes, title) {
  return fitted(make('div', { class: 'chart' }), (width) => {
    const height = 150;
    const base = height - 26;
    const place = new Map(versions.map((version, i) => [version, 24 + ((width - 48) * (i + 0.5)) / versions.length]));
    const picture = draw('svg', { width, height, role: 'img', 'aria-label': title });
    for (const route of [...routes].sort((a, b) => Number(a.chosen) - Number(b.chosen))) {
      const to = place.get(route.to);
      const from = place.get(route.from);
      if (to === undefined || (route.from !== null && from === undefined)) continue;
      const lift = from === undefined ? 0 : Math.min(base - 14, 18 + (to - from) / 3);
      const d = route.from === null ? `M${to} 10V${base - 7}` : `M${from} ${base - 5}C${from} ${base - lift} ${to} ${base - lift} ${to} ${base - 7}`;
      const says = `${route.from === null ? 'from nothing' : `from version ${route.from}`} to version ${route.to}`;
      picture.append(draw('path', { d, class: route.chosen ? 'route chosen' : 'route' }, draw('title', { text: says })));
    }
    const every = Math.ceil((String(versions[versions.length - 1]).length * 9 + 6) / (width / versions.length));
    versions.forEach((version, i) => {
      const x = place.get(version);
      picture.append(draw('circle', { cx: x, cy: base, r: Math.min(5, width / versions.length / 3), class: 'version' }));
      if (i % every === 0) picture.append(draw('text', { x, y: height - 4, text: String(version) }));
    });
    return picture;
  });
}

/** Number of shades in the heat map. */
const SHADES = 6;

/**
 * A map of the places where a tensor changes.
 * @param {import('./changes.js').Grid} grid
 * @param {string} name
 */
export function heatMap(grid, name) {
  const { down, across, counts } = grid;
  const shares = Array.from(counts, (count, i) => count / Math.max(1, binArea(grid, Math.floor(i / across), i % across)));
  // The brightest bins all get the last shade, so that a single one does not darken the rest.
  const sorted = shares.filter((share) => share > 0).sort((a, b) => a - b);
  const top = sorted.length === 0 ? 1 : sorted[Math.floor(0.99 * (sorted.length - 1))];
  const legend = make('p', { class: 'legend' }, make('span', { text: '0' }),
    ...Array.from({ length: SHADES }, (_, i) => make('i', { class: `shade shade-${i}` })),
    make('span', { text: `${percent(top)} of a cell changed, or more` }));
  const canvas = make('canvas', { class: 'heat', width: across, height: down, role: 'img', tabindex: 0,
    'aria-label': `Where ${name} changes: rows down, columns across. The rows that change most are in the table.` });
  const paint = () => {
    const context = canvas.getContext('2d');
    const shades = [...legend.querySelectorAll('i')].map((shade) => getComputedStyle(shade).backgroundColor);
    shares.forEach((share, i) => {
      const shade = share === 0 ? 0 : Math.max(1, Math.min(SHADES - 1, Math.ceil(((SHADES - 1) * share) / top)));
      context.fillStyle = shades[shade];
      context.fillRect(i % across, Math.floor(i / across), 1, 1);
    });
  };
  requestAnimationFrame(paint);
  const colours = matchMedia('(prefers-color-scheme: dark)');
  const repaint = () => (canvas.isConnected ? paint() : colours.removeEventListener('change', repaint));
  colours.addEventListener('change', repaint);
  if (down === 1) canvas.style.height = '48px';
  else canvas.style.aspectRatio = '1';
  const under = make('p', { class: 'note', text: ' ' });
  canvas.addEventListener('pointermove', (event) => {
    const box = canvas.getBoundingClientRect();
    const x = Math.min(across - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * across)));
    const y = Math.min(down - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * down)));
    const area = binArea(grid, y, x);
    under.textContent = `${place('row', span(grid.rows, down, y))}, ${place('column', span(grid.columns, across, x))}: `
      + `${grouped(counts[y * across + x])} of ${grouped(area)} changed`;
  });
  return make('div', {}, make('div', { class: 'axes' },
    make('span', { class: 'note', text: `${grouped(grid.columns)} columns →` }),
    make('span', { class: 'note', text: `${grouped(grid.rows)} rows ↓` })), canvas, under, legend);
}

function place(what, [from, to]) {
  return to - from === 1 ? `${what} ${grouped(from)}` : `${what}s ${grouped(from)} to ${grouped(to - 1)}`;
}
