/**
 * Files in the page itself. Each is an element between the marks `<!--data-->` and `<!--/data-->`:
 *
 *     <script type="text/plain" class="data" data-name="NAME">BASE64</script>
 *
 * One element is a link; `data-name` is the name of its file. Several are the objects of a chain; `data-name` is the
 * name of an object, such as `chain.json` or `commits/00000000000000000000.json`. The element of `chain.json` also has
 * `data-chain`, the chain's name for people; without it the chain is the excerpt that the page is built with. A chain
 * may be there without its links (`files/...`): then the page shows what its documents say.
 */
import { chainIn } from './dropped.js';

/** Number of characters of base64 that are decoded at one time: whole groups of four. */
const STRETCH = 2 ** 22;
const EXCERPT = 'An excerpt of a real chain: policy gradient on a small encoder (BERT)';

/** Decodes base64 without spaces. @param {string} text */
function unbase64(text) {
  const padding = text.endsWith('==') ? 2 : text.endsWith('=') ? 1 : 0;
  const bytes = new Uint8Array((text.length / 4) * 3 - padding);
  let length = 0;
  for (let i = 0; i < text.length; i += STRETCH) {
    const part = atob(text.slice(i, i + STRETCH));
    for (let k = 0; k < part.length; k++) bytes[length++] = part.charCodeAt(k);
  }
  return bytes;
}

/**
 * A link, or a chain. `isExcerpt` is true for the chain that the page is built with.
 * @typedef {{ name: string, link: File, chain: null, isExcerpt: false }} EmbeddedLink
 * @typedef {{ name: string, link: null, chain: [string, File][], isExcerpt: boolean }} EmbeddedChain
 */

/**
 * Returns what the page has inside; null if it has nothing. Drops the elements' text, which can be long.
 * @param {Iterable<{ dataset: DOMStringMap, textContent: string }>} elements
 * @returns {EmbeddedLink | EmbeddedChain | null}
 */
export function embeddedIn(elements) {
  /** @type {string | undefined} */
  let named;
  /** @type {[string, File][]} */
  const files = [];
  for (const element of elements) {
    const { name, chain } = element.dataset;
    files.push([name, new File([unbase64(element.textContent)], name)]);
    named ??= chain;
    element.textContent = '';
  }
  if (files.length === 0) return null;
  const chain = chainIn(files);
  if (chain === null) return { name: files[0][0], link: files[0][1], chain: null, isExcerpt: false };
  return { name: named ?? EXCERPT, link: null, chain: chain.files, isExcerpt: named === undefined };
}

/**
 * Returns a function that tells whether a link of an embedded chain is in the page.
 * @param {[string, File][]} files
 * @returns {(digest: string) => boolean}
 */
export function linksIn(files) {
  const names = new Set(files.map(([name]) => name));
  return (digest) => names.has(`files/${digest}.dcf`);
}
