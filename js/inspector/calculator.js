/**
 * What a version costs: the arithmetic of docs/scaling.md, with the speeds that it measured, and with sizes of links from
 * docs/comparison.md.
 */
import { byId, make } from './dom.js';
import { percent, seconds, size, times } from './words.js';

/**
 * Size of a link to a BF16 model, divided by the entropy of its changes if they were spread evenly: in the six rows of
 * docs/comparison.md for steps 2 to 4 of a decoder, at learning rates 1e-6 and 1e-5. `typical` is their geometric mean.
 */
const TO_ENTROPY = { least: 0.62, typical: 0.81, most: 0.94 };
/** Percentages of changed elements in these rows, by learning rate. */
const CHANGED = '0.48 to 0.98 % of the elements change in a step at a learning rate of 1e-6, and 2.25 to 2.79 % at 1e-5';
/** Bytes of the model per second and core, as in docs/scaling.md: with digests of base and result. */
const DIFF = 1.65e9;
const APPLY = 2.13e9;
/** Each host: cores, and bytes per second of memory. Each byte of the model takes three bytes of memory traffic. */
const CORES = 16;
const MEMORY = 200e9;
const TRAFFIC = 3;
/** Share of the changes that move by more than one step of the number format, and bits to say how far: both are estimates. */
const FAR_SHARE = 0.05;
const FAR_BITS = 3;

/** Returns the sentences about the constants. */
export function assumptions() {
  const speed = (bytes) => `${bytes / 1e9} GB/s`;
  const { link, linkRange: [least, most], model } = costOf({ parameters: 1e9, bytesEach: 2, share: 0.01, line: 1e9, hosts: 1 });
  return `Sizes are fitted to a decoder of 135 million parameters in BF16, where ${CHANGED}; the optimizer's first step changes more. `
    + `A link then takes ${percent(link / model)} of a model of which 1 % changes (${percent(least / model)} to ${percent(most / model)}): `
    + 'it depends on where the weights change. Very small models take more, because header and index weigh more. '
    + `Speeds are those of docs/scaling.md: ${speed(DIFF)} per core to make a link and ${speed(APPLY)} to apply it, `
    + `${CORES} cores and ${speed(MEMORY)} of memory per host, the whole model in each. Other formats than BF16 are estimates. `
    + 'Disks are left out: they are often slower than all of this.';
}

/** Bits of a choice between two, of which one has this probability. @param {number} p */
const entropy = (p) => (p <= 0 || p >= 1 ? 0 : -p * Math.log2(p) - (1 - p) * Math.log2(1 - p));

/** Returns the bits per element that code positions and sizes of changes: their entropy. @param {number} share of changed elements */
function bitsPerElement(share) {
  if (share <= 0) return 0;
  const sign = 1;
  const distance = entropy(FAR_SHARE) + FAR_SHARE * FAR_BITS;
  return entropy(share) + share * (sign + distance);
}

/**
 * Returns the bytes and seconds of a version. `linkRange` has the sizes that the smallest and the largest of the
 * measured links would have at this share.
 * @param {{ parameters: number, bytesEach: number, share: number, line: number, hosts: number }} scene parameters as a
 *   count, share from 0 to 1, line in bits per second of each host
 */
export function costOf({ parameters, bytesEach, share, line, hosts }) {
  const model = parameters * bytesEach;
  // The bits of changes depend on how many elements change, not on how wide these are.
  const even = (parameters * bitsPerElement(share)) / 8;
  const linkOf = (toEntropy) => Math.min(model, toEntropy * even);
  const link = linkOf(TO_ENTROPY.typical);
  const bytesPerSecond = line / 8;
  const work = (speed) => Math.max(model / (CORES * speed), (TRAFFIC * model) / MEMORY);
  return {
    model, link, linkRange: [linkOf(TO_ENTROPY.least), linkOf(TO_ENTROPY.most)],
    diff: work(DIFF), apply: work(APPLY),
    sendModel: model / bytesPerSecond, sendLink: link / bytesPerSecond,
    allModels: model * hosts, allLinks: link * hosts,
  };
}

function show() {
  const number = (id) => Number(byId(id).value);
  const [parameters, bytesEach, percentage, line, hosts] = ['c-parameters', 'c-bytes', 'c-percent', 'c-line', 'c-hosts'].map(number);
  const valid = [parameters, bytesEach, line, hosts].every((value) => value > 0) && percentage >= 0 && percentage <= 100;
  if (!valid) {
    byId('c-result').replaceChildren(make('p', { class: 'error', text: 'Numbers above 0, and a share of 0 to 100 %.' }));
    return;
  }
  const cost = costOf({ parameters: parameters * 1e9, bytesEach, share: percentage / 100, line: line * 1e9, hosts });
  const less = cost.link === 0 ? 'nothing to send' : `${times(cost.model / cost.link)} times less`;
  const rows = [
    ['Bytes of a version', size(cost.link), size(cost.model)],
    ['Over the line, to one host', seconds(cost.sendLink), seconds(cost.sendModel)],
    ['From the bucket, to all hosts', size(cost.allLinks), size(cost.allModels)],
    ['Making it, on one host', seconds(cost.diff), '–'],
    ['Applying it, on one host', seconds(cost.apply), '–'],
  ];
  byId('c-result').replaceChildren(
    make('p', { class: 'headline', text: `${size(cost.link)} instead of ${size(cost.model)}: ${less}.` }),
    make('p', { class: 'note', text: `${cost.linkRange.map(size).join(' to ')} by the spread of measured links.` }),
    make('table', { class: 'compare' },
      make('thead', {}, make('tr', {}, ...['', 'Link', 'Full copy'].map((text) => make('th', { scope: 'col', text })))),
      make('tbody', {}, ...rows.map(([head, link, full]) =>
        make('tr', {}, make('th', { scope: 'row', text: head }), make('td', { class: 'number', text: link }), make('td', { class: 'number', text: full }))))));
}

/** Shows the result for the numbers in the form, and again when they change. */
export function startCalculator() {
  byId('c-assumptions').textContent = assumptions();
  for (const input of byId('calculator').querySelectorAll('input, select')) input.addEventListener('input', show);
  show();
}
