/** The page: opens a link that is embedded or chosen, and shows its header and what it changes in each tensor. */
import { blobSource, bytesSource, open } from '../src/index.js';

const at = (id) => document.getElementById(id);
const COLUMNS = [['name', 'Tensor'], ['operation', 'Operation'], ['dtype', 'Dtype'], ['shape', 'Shape'],
  ['lanes', 'Lanes'], ['coded', 'Coded'], ['share', 'Share'], ['bytes', 'Bytes']];
let current = null;
let rows = [];
let order = { key: 'bytes', down: true };
/** Counts what was opened, so that a slow link does not replace a later one. */
let opened = 0;

function element(tag, text, parent) {
  const made = document.createElement(tag);
  made.textContent = text;
  parent.append(made);
  return made;
}

function say(text, bad = false) {
  at('status').textContent = text;
  at('status').className = bad ? 'error' : '';
}

function refusal(error) {
  const { class: kind, rule, section, offset, tensor } = error;
  const where = { rule, section, offset, tensor };
  const places = Object.entries(where).filter(([, value]) => value != null).map(([key, value]) => `${key} ${value}`);
  return [kind, ...places, error.message].filter(Boolean).join(' · ');
}

function draw() {
  const wanted = at('search').value.toLowerCase();
  const shown = rows.filter((row) => row.name.toLowerCase().includes(wanted));
  const { key, down } = order;
  const value = (row) => (key === 'shape' ? String(row.shape ?? '') : row[key] ?? '');
  shown.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0) * (down ? -1 : 1));
  at('rows').replaceChildren();
  for (const row of shown) {
    const line = element('tr', '', at('rows'));
    for (const [column] of COLUMNS) {
      if (column === 'share') {
        const cell = element('td', row.share === null ? '' : `${(100 * row.share).toFixed(2)} % `, line);
        if (row.share !== null) element('meter', '', cell).value = row.share;
      } else if (column === 'shape') element('td', row.shape?.join(' × ') ?? '', line);
      else element('td', row[column]?.toLocaleString('en') ?? '', line);
    }
  }
  for (const head of at('columns').children) {
    head.ariaSort = head.dataset.key !== key ? 'none' : down ? 'descending' : 'ascending';
  }
}

async function show(name, source) {
  const mine = ++opened;
  at('link').hidden = true;
  say(`Reading ${name} …`);
  try {
    const link = await open(source);
    const found = await link.inspect();
    if (mine !== opened) return;
    current = link;
    rows = found.tensors;
    at('name').textContent = name;
    at('facts').replaceChildren();
    const { bytes, base, target, segments, total, snapshot } = found;
    const facts = { Bytes: bytes, Base: snapshot ? 'nothing: a snapshot' : base, Target: target, Segments: segments,
      Tensors: rows.length, 'Coded lanes': `${total.coded.toLocaleString('en')} of ${total.lanes.toLocaleString('en')}` };
    for (const [term, fact] of Object.entries(facts)) {
      element('dt', term, at('facts'));
      element('dd', fact.toLocaleString('en'), at('facts'));
    }
    draw();
    at('link').hidden = false;
    say('');
  } catch (error) {
    if (mine === opened) say(refusal(error), true);
  }
}

async function check() {
  const link = current;
  at('progress').hidden = false;
  try {
    await link.check({ progress: (done, all) => { at('progress').value = all === 0 ? 1 : done / all; } });
    say('Every segment decodes. Digests need the base: they were not compared.');
  } catch (error) {
    say(refusal(error), true);
  }
}

for (const [key, title] of COLUMNS) {
  const head = element('th', '', at('columns'));
  head.dataset.key = key;
  element('button', title, head).onclick = () => {
    order = { key, down: order.key === key ? !order.down : true };
    draw();
  };
}
at('search').oninput = draw;
at('check').onclick = check;
const take = (file) => file && show(file.name, blobSource(file));
at('file').onchange = () => take(at('file').files[0]);
document.ondragover = (event) => event.preventDefault();
document.ondrop = (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); };
const embedded = at('embedded');
const text = embedded.textContent.trim();
if (text !== '') show(embedded.dataset.name, bytesSource(Uint8Array.from(atob(text), (c) => c.charCodeAt(0))));
