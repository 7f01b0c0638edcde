/** Who signed the versions of a chain: the keys that the user trusts, and which notes they make valid. */
import { DeltachainError } from '../src/index.js';
import { checkTrust } from '../src/signatures.js';
import { byId, make, refusal, say } from './dom.js';
import { counted } from './words.js';

/** @typedef {import('./chain-data.js').ChainData} ChainData */
/** @typedef {import('./chain-data.js').Version} Version */
/** @typedef {import('../src/signatures.js').Trust} Trust */
/** @typedef {import('../src/signatures.js').TrustedKey} TrustedKey */

/** Size of a file up to which it may be one of keys, in bytes. */
const KEY_FILE_BYTES = 65536;
/** Limits on the signer names that are shown, which anyone can write: characters of a name, and number of names. */
const NAME_CHARACTERS = 40;
const SHOWN_NAMES = 4;

/**
 * The keys of a form that is empty or wrong. Always the same array: callers compare the results of `trustedKeys` by
 * identity, to notice that the user has changed the form.
 * @type {TrustedKey[]}
 */
const NO_KEYS = [];

/** Content of the form, checked; null if it has no keys, or wrong ones. @type {{ trust: Trust, keys: TrustedKey[] } | null} */
let given = null;

/** Trust for the reader; null if the user has given no keys. */
export const trusted = () => given?.trust ?? null;

/** The keys that the user trusts. A new array after each change of the form, also of the quorum. */
export const trustedKeys = () => given?.keys ?? NO_KEYS;

/** Returns the keys of a text: one in each line; `#` begins a comment. @param {string} text */
const parseKeyLines = (text) => text.split('\n').map((line) => line.trim()).filter((line) => line !== '' && !line.startsWith('#'));

function readForm() {
  const trust = { keys: parseKeyLines(byId('keys').value), quorum: Number(byId('quorum').value) };
  given = null;
  byId('keys-wrong').textContent = '';
  if (trust.keys.length === 0) return;
  try {
    given = { trust, keys: checkTrust(trust).keys };
  } catch (error) {
    if (!(error instanceof DeltachainError)) throw error;
    byId('keys-wrong').textContent = refusal(error);
  }
}

/** Listens to the form. @param {() => void} changed called when the user has changed the keys or the quorum */
export function startTrust(changed) {
  for (const id of ['keys', 'quorum']) {
    byId(id).addEventListener('input', () => {
      readForm();
      changed();
    });
  }
}

/**
 * Moves the keys in dropped or chosen files of public keys into the form.
 * @param {[string, File][]} files
 * @returns {Promise<[string, File][]>} the other files
 */
export async function extractKeys(files) {
  const found = [];
  const others = [];
  for (const [path, file] of files) {
    const keys = await keysInFile(path, file);
    if (keys.length > 0) found.push(...keys);
    else others.push(/** @type {[string, File]} */ ([path, file]));
  }
  if (found.length > 0) fillForm(found);
  return others;
}

/** Returns the keys of a file; none if it is not a file of keys. @param {string} path @param {File} file */
async function keysInFile(path, file) {
  const maybe = !path.includes('/') && file.size <= KEY_FILE_BYTES && !/\.(dcf|safetensors|json)$/.test(path);
  if (!maybe) return [];
  const keys = parseKeyLines(await file.text());
  return keys.every((key) => /^[^+\s]+\+[0-9a-f]{8}\+[A-Za-z0-9+/=]+( [0-9a-f]{64})*$/.test(key)) ? keys : [];
}

/** @param {string[]} keys */
function fillForm(keys) {
  byId('keys').value = keys.join('\n');
  // As if the user had typed them.
  byId('keys').dispatchEvent(new Event('input'));
  byId('signatures').open = true;
  say(`${counted(keys.length, 'public key')} added: a chain shows which versions they have signed.`);
}

/** Returns the signers that a version's notes name, each once. @param {Version} version */
function claimed({ notes }) {
  return [...new Set(notes.flatMap(({ lines }) => lines.map(({ name, id }) => `${name}+${id}`)))].sort();
}

/**
 * Returns the trusted keys that have signed a version, and whether they are enough.
 * @param {ChainData} data
 * @param {number} version
 */
function signed(data, version) {
  const signers = data.signersOf(version, trustedKeys());
  const enough = given !== null && signers !== null && signers.length >= given.trust.quorum;
  return { signers, enough };
}

/**
 * Makes a list of signer names, each in a `bdi`, because a name may be written from right to left.
 * @param {string} before
 * @param {string[]} all
 * @param {string} kind
 */
function names(before, all, kind) {
  const shown = all.slice(0, SHOWN_NAMES).map((name) => (name.length > NAME_CHARACTERS ? `${name.slice(0, NAME_CHARACTERS)}…` : name));
  const more = all.length > SHOWN_NAMES ? ` and ${all.length - SHOWN_NAMES} more` : '';
  return make('span', { class: kind }, before, ...shown.flatMap((text, i) => [i === 0 ? '' : ', ', make('bdi', { text })]), more);
}

/** True if the table of versions has a column for signers. @param {ChainData} data */
export const showsSigners = ({ known }) => given !== null || known.some(({ notes }) => notes.length > 0);

/** Makes the cell about the signers of a version. @param {ChainData} data @param {Version} version */
export function signersCell(data, version) {
  const box = make('span', { class: 'routes' });
  const { signers, enough } = signed(data, version.version);
  if (signers === null) {
    box.append(make('span', { class: 'note', text: 'not checked' }));
    return box;
  }
  const signerNames = signers.map(({ name }) => name);
  const verified = new Set(signers.map(({ name, id }) => `${name}+${id}`));
  const unverified = claimed(version).filter((claim) => !verified.has(claim));
  if (enough) {
    box.append(names('signed by ', signerNames, 'good'));
  } else if (given !== null) {
    box.append(make('span', { class: 'error', text: 'not signed' }));
    if (signers.length > 0) box.append(names(`only ${signers.length} of ${given.trust.quorum}: `, signerNames, ''));
  }
  if (unverified.length > 0) box.append(names('unverified: ', unverified, 'note'));
  return box;
}

/** Returns the line about all versions. @param {ChainData} data */
function summaryText(data) {
  const versions = data.known;
  const shown = counted(versions.length, 'version');
  if (given !== null) {
    const enough = versions.filter(({ version }) => signed(data, version).enough).length;
    return `Signatures: ${enough} of ${shown} signed`;
  }
  if (data.store.list === undefined) return 'Signatures: not listed';
  const noted = versions.filter(({ notes }) => notes.length > 0).length;
  return noted === 0 ? 'Signatures: none' : `Signatures: on ${noted} of ${shown}, unverified`;
}

/**
 * Shows the section about signatures.
 * @param {ChainData} data
 * @param {() => boolean} isCurrent true while that chain is shown
 */
export async function showTrust(data, isCurrent) {
  byId('signatures-summary').textContent = summaryText(data);
  const box = byId('signed-head');
  box.className = 'note';
  box.textContent = '';
  if (given === null) {
    const noted = data.known.some(({ notes }) => notes.length > 0);
    if (noted) box.textContent = 'Anybody can write a name into a signature. Add the public keys that you trust, to see which signatures are valid.';
    return;
  }
  const { trust } = given;
  let text;
  let kind = '';
  try {
    const head = await data.chain.head({ trust });
    if (head === data.head) {
      kind = 'good';
      text = `The newest version, ${head}, is signed.`;
    } else {
      text = `The newest version that is signed is ${head}. A reader with these keys uses it and ignores version ${data.head}.`;
    }
  } catch (error) {
    kind = 'error';
    text = refusal(error);
  }
  if (!isCurrent() || trust !== given?.trust) return;
  box.className = kind;
  box.textContent = text;
}
