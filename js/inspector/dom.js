/** Functions that make and find elements. Everything that comes from a file becomes text, never markup. */

/** @param {string} id @returns {any} */
export const at = (id) => document.getElementById(id);

const SVG = 'http://www.w3.org/2000/svg';

/**
 * Makes an element. `class`, `text` and names that begin with `on` are special, the rest are attributes.
 * @param {string} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string | null)} children
 * @returns {any}
 */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Same as `make`, for drawings. */
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

/** @param {() => string} text @param {string} label @param {string} [what] for screen readers */
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

/** Copies on pages that are not a secure context, such as those from a plain http address. */
function copyBySelection(text) {
  const area = make('textarea', { class: 'hidden', 'aria-hidden': true });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand('copy');
  area.remove();
  return done;
}

/** Parts of a link, by the prefixes of their rules. */
const PARTS = new Map([['R-HDR', 'header'], ['R-IDX', 'index']]);

/** Returns the text of an error, with all that is known about the place. @param {any} error */
export function refusal(error) {
  if (error?.class === undefined) return String(error?.message ?? error);
  const { class: kind, rule, section, offset, tensor, segment } = error;
  const places = [
    PARTS.get(rule?.slice(0, 5)) ?? null, rule && `rule ${rule}`, section && `SPEC section ${section}`, offset !== null && `offset ${offset}`,
    tensor !== null && `tensor ${tensor}`, segment !== null && `segment ${segment}`,
  ].filter(Boolean);
  return `${kind}: ${error.message}${places.length > 0 ? ` (${places.join(', ')})` : ''}`;
}

/** Shows a text in the message line. @param {string} text @param {boolean} [bad] */
export function say(text, bad = false) {
  at('status').textContent = text;
  at('status').className = bad ? 'error' : '';
}
