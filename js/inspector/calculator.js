/** Computes what a version costs: the arithmetic of docs/scaling.md, with its measured constants. */
import { at, make } from './dom.js';
import { seconds, size, times } from './words.js';

/** Size of a link to a BF16 model in which 1 % changed, as a share of the model. */
const LINK_AT_ONE_PERCENT = 0.0041;
/** Bytes of the model per second and core: docs/benchmarks.md, with digests of base and result. */
const DIFF = 1.65e9;
const APPLY = 2.13e9;
/** Cores, and bytes per second of memory; each byte of the model takes three bytes of memory traffic. */
const CORES = 16;
const MEMORY = 200e9;
const TRAFFIC = 3;

/**
 * Returns the bits per element for the places and sizes of changes: their entropy, if 1 in 20 changes by more than 1
 * step.
 */
function bitsPerElement(share) {
  if (share <= 0) return 0;
  const entropy = (p) => (p <= 0 || p >= 1 ? 0 : -p * Math.log2(p) - (1 - p) * Math.log2(1 - p));
  const sign = 1;
  const far = entropy(0.05) + 0.05 * 3;
  return entropy(share) + share * (sign + far);
}

/**
 * @param {{ parameters: number, bytesEach: number, share: number, line: number, hosts: number }} scene parameters as a
 *   count, share from 0 to 1, line in bits per second of each host
 */
export function costOf({ parameters, bytesEach, share, line, hosts }) {
  const model = parameters * bytesEach;
  // The measurement is for BF16. The bits depend on how many elements change, not on their width.
  const atOne = (LINK_AT_ONE_PERCENT * 16) / bitsPerElement(0.01);
  const link = Math.min(model, (parameters * bitsPerElement(share) * atOne) / 8);
  const bytesPerSecond = line / 8;
  const work = (speed) => Math.max(model / (CORES * speed), (TRAFFIC * model) / MEMORY);
  return {
    model, link,
    diff: work(DIFF), apply: work(APPLY),
    sendModel: model / bytesPerSecond, sendLink: link / bytesPerSecond,
    allModels: model * hosts, allLinks: link * hosts,
  };
}

function show() {
  const number = (id) => Number(at(id).value);
  const [parameters, bytesEach, percent, line, hosts] = ['c-parameters', 'c-bytes', 'c-percent', 'c-line', 'c-hosts'].map(number);
  const right = [parameters, bytesEach, line, hosts].every((value) => value > 0) && percent >= 0 && percent <= 100;
  if (!right) {
    at('c-result').replaceChildren(make('p', { class: 'error', text: 'Numbers above 0, and a share of 0 to 100 %.' }));
    return;
  }
  const cost = costOf({ parameters: parameters * 1e9, bytesEach, share: percent / 100, line: line * 1e9, hosts });
  const less = cost.link === 0 ? 'nothing to send' : `${times(cost.model / cost.link)} times less`;
  const rows = [
    ['Bytes of a version', size(cost.link), size(cost.model)],
    ['Over the line, to one host', seconds(cost.sendLink), seconds(cost.sendModel)],
    ['From the bucket, to all hosts', size(cost.allLinks), size(cost.allModels)],
    ['Making it, on one host', seconds(cost.diff), '–'],
    ['Applying it, on one host', seconds(cost.apply), '–'],
  ];
  at('c-result').replaceChildren(
    make('p', { class: 'headline', text: `${size(cost.link)} instead of ${size(cost.model)}: ${less}.` }),
    make('table', { class: 'compare' },
      make('thead', {}, make('tr', {}, ...['', 'Link', 'Full copy'].map((text) => make('th', { scope: 'col', text })))),
      make('tbody', {}, ...rows.map(([head, link, full]) =>
        make('tr', {}, make('th', { scope: 'row', text: head }), make('td', { class: 'number', text: link }), make('td', { class: 'number', text: full }))))));
}

export function startCalculator() {
  for (const input of at('calculator').querySelectorAll('input, select')) input.addEventListener('input', show);
  show();
}
