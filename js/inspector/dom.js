/** Makes and finds elements. Whatever a file says becomes text, never markup. */

/** The element with an id of page.html. @param {string} id @returns {any} */
export const byId = (id) => document.getElementById(id);

const SVG = 'http://www.w3.org/2000/svg';

/**
 * Makes an element. `text` sets its text, and a name that begins with `on` adds a listener. All others are attributes: null,
 * undefined and false leave one out, true makes it empty.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string | null)} children
 * @returns {any}
 */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Makes an element of a drawing, like `make`. */
export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === 'text') element.textContent = value;
    else if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? '' : value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** Makes a table. @param {string[]} heads @param {(Node | string)[][]} rows @param {string} caption */
export function table(heads, rows, caption) {
  return make('div', { class: 'wide', tabindex: 0, role: 'region', 'aria-label': caption },
    make('table', {},
      make('thead', {}, make('tr', {}, ...heads.map((text) => make('th', { scope: 'col', text })))),
      make('tbody', {}, ...rows.map((cells) => make('tr', {}, ...cells.map((cell) => make('td', {}, cell)))))));
}

/** Makes a text with a button that copies it. @param {string} text @param {string} what */
export function copyable(text, what) {
  return make('span', { class: 'digest' }, make('code', { text }), copyButton(() => text, 'Copy', what));
}

/** Makes a button that copies a text. @param {() => string} text @param {string} label @param {string} [what] for screen readers */
export function copyButton(text, label, what = '') {
  const button = make('button', { type: 'button', class: 'small', text: label, 'aria-label': what && `${label} ${what}` });
  button.addEventListener('click', async () => {
    button.textContent = (await copy(text())) ? 'Copied' : 'Not allowed';
    button.addEventListener('blur', () => { button.textContent = label; }, { once: true });
  });
  return button;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/** Copies where `navigator.clipboard` is missing: on pages from plain http. */
function copyBySelection(text) {
  const area = make('textarea', { class: 'hidden', 'aria-hidden': true });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  return done;
}

/** Part of a link by the prefix of a rule. */
const PARTS = new Map([['R-HDR', 'header'], ['R-IDX', 'index']]);

/** Returns what went wrong, and where if that is known. @param {any} error */
export function refusal(error) {
  if (error?.class === undefined) return String(error?.message ?? error);
  const { class: kind, rule, section, offset, tensor, segment } = error;
  const places = [];
  const part = PARTS.get(rule?.slice(0, 5));
  if (part !== undefined) places.push(part);
  if (rule) places.push(`rule ${rule}`);
  if (section) places.push(`SPEC section ${section}`);
  if (offset !== null) places.push(`offset ${offset}`);
  if (tensor !== null) places.push(`tensor ${tensor}`);
  if (segment !== null) places.push(`segment ${segment}`);
  return `${kind}: ${error.message}${places.length > 0 ? ` (${places.join(', ')})` : ''}`;
}

/** Shows a message in the status line. @param {string} text @param {boolean} [bad] */
export function say(text, bad = false) {
  byId('status').textContent = text;
  byId('status').className = bad ? 'error' : '';
}
