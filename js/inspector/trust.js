/** Signers of the versions of a chain: the keys that the user trusts, and the notes that these have signed. */
import { DeltachainError } from '../src/index.js';
import { checkTrust } from '../src/signatures.js';
import { at, make, refusal, say } from './dom.js';
import { counted } from './words.js';

/** @typedef {import('./chain-data.js').Version} Version */

/** Maximum size of a file of keys, in bytes. */
const MOST_BYTES = 65536;
/** Maximum length of texts that anyone can write: characters of a name, and number of names. */
const [MOST_CHARACTERS, MOST_NAMES] = [40, 4];

/** @type {import('../src/signatures.js').TrustedKey[]} */
const NONE = [];

/** The values of the form, as given and checked; null without keys, or if they are wrong. */
let given = /** @type {{ trust: import('../src/signatures.js').Trust, keys: import('../src/signatures.js').TrustedKey[] } | null} */ (null);

/** The trust of the user; null for none. */
export const trusted = () => given?.trust ?? null;

/** The keys that the user trusts. */
export const trustedKeys = () => given?.keys ?? NONE;

/** Returns the keys of a text: one in each line; `#` begins a comment. @param {string} text */
const keysOf = (text) => text.split('\n').map((line) => line.trim()).filter((line) => line !== '' && !line.startsWith('#'));

function readForm() {
  const trust = { keys: keysOf(at('keys').value), quorum: Number(at('quorum').value) };
  given = null;
  at('keys-wrong').textContent = '';
  if (trust.keys.length === 0) return;
  try {
    given = { trust, keys: checkTrust(trust).keys };
  } catch (error) {
    if (!(error instanceof DeltachainError)) throw error;
    at('keys-wrong').textContent = refusal(error);
  }
}

/** @param {() => void} changed called when the user changes the trusted keys */
export function startTrust(changed) {
  for (const id of ['keys', 'quorum']) {
    at(id).addEventListener('input', () => {
      readForm();
      changed();
    });
  }
}

/**
 * Moves files of public keys, among the dropped or chosen ones, into the form.
 * @param {[string, File][]} files
 * @returns {Promise<[string, File][]>} the others
 */
export async function takeKeys(files) {
  const found = [];
  const others = [];
  for (const [path, file] of files) {
    const may = !path.includes('/') && file.size <= MOST_BYTES && !/\.(dcf|safetensors|json)$/.test(path);
    const keys = may ? keysOf(await file.text()) : [];
    if (keys.length > 0 && keys.every((key) => /^[^+\s]+\+[0-9a-f]{8}\+[A-Za-z0-9+/=]+( [0-9a-f]{64})*$/.test(key))) found.push(...keys);
    else others.push(/** @type {[string, File]} */ ([path, file]));
  }
  if (found.length > 0) {
    at('keys').value = found.join('\n');
    at('keys').dispatchEvent(new Event('input'));
    at('signatures').open = true;
    say(`${counted(found.length, 'public key')} taken: a chain shows which versions they have signed.`);
  }
  return others;
}

/** Returns the names in the notes of a version, each once. @param {Version} version */
function claimed({ notes }) {
  return [...new Set(notes.flatMap(({ lines }) => lines.map(({ name, id }) => `${name}+${id}`)))].sort();
}

/** Returns the trusted keys that have signed a version, and whether they are enough. @param {Version} version */
function signed({ signers }) {
  return { signers, enough: signers.length > 0 && signers.length >= given.trust.quorum };
}

/**
 * Makes an element with names, which may be written from right to left.
 * @param {string} before
 * @param {string[]} all
 * @param {string} kind
 */
function names(before, all, kind) {
  const shown = all.slice(0, MOST_NAMES).map((name) => (name.length > MOST_CHARACTERS ? `${name.slice(0, MOST_CHARACTERS)}…` : name));
  const more = all.length > MOST_NAMES ? ` and ${all.length - MOST_NAMES} more` : '';
  return make('span', { class: kind }, before, ...shown.flatMap((text, i) => [i === 0 ? '' : ', ', make('bdi', { text })]), more);
}

/** True if there is anything to show beside the versions. @param {import('./chain-data.js').ChainData} data */
export const showsSigners = ({ known }) => given !== null || known.some(({ notes }) => notes.length > 0);

/** Makes an element with the signers of a version. @param {Version} version */
export function signersOfVersion(version) {
  const { signers, enough } = signed(version);
  const others = claimed(version).filter((claim) => !signers.some(({ name, id }) => claim === `${name}+${id}`));
  const box = make('span', { class: 'routes' });
  if (enough) box.append(names('signed by ', signers.map(({ name }) => name), 'good'));
  else if (given !== null) box.append(make('span', { class: 'error', text: 'not signed' }));
  if (!enough && signers.length > 0) box.append(names(`only ${signers.length} of ${given.trust.quorum}: `, signers.map(({ name }) => name), ''));
  if (others.length > 0) box.append(names('unverified: ', others, 'note'));
  return box;
}

/**
 * Shows the section about signatures.
 * @param {import('./chain-data.js').ChainData} data
 * @param {() => boolean} current whether that chain is still shown
 */
export async function showTrust(data, current) {
  const versions = data.known;
  const noted = versions.filter(({ notes }) => notes.length > 0).length;
  const enough = versions.filter((version) => signed(version).enough).length;
  const shown = counted(versions.length, 'version');
  at('signatures-summary').textContent = given !== null ? `Signatures: ${enough} of ${shown} signed`
    : data.store.list === undefined ? 'Signatures: not listed'
    : noted === 0 ? 'Signatures: none' : `Signatures: of ${noted} of ${shown}, unverified`;
  const box = at('signed-head');
  box.className = 'note';
  box.textContent = noted === 0 ? '' : 'Anybody can write a name into a signature. Give the public keys that you trust, to see whose count.';
  if (given === null) return;
  box.textContent = '';
  const { trust } = given;
  try {
    const head = await data.chain.head({ trust });
    if (!current() || trust !== given?.trust) return;
    box.className = head === data.head ? 'good' : '';
    box.textContent = head === data.head ? `The newest version, ${head}, is signed.`
      : `The newest version that is signed is ${head}. A reader with these keys takes it, and goes on as if version ${data.head} were not there.`;
  } catch (error) {
    if (!current() || trust !== given?.trust) return;
    box.className = 'error';
    box.textContent = refusal(error);
  }
}
