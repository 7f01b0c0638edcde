/** The page: opens and shows files that are embedded, dropped, chosen or named by an address. */
import { blobSource, filesStore, httpSource, httpStore } from '../src/index.js';
import { startCalculator } from './calculator.js';
import { closeChain, showChain, startChainView } from './chain-view.js';
import { at, refusal, say } from './dom.js';
import { entriesOf, chainIn } from './dropped.js';
import { closeLink, showLink, startLinkView, takeBase } from './link-view.js';
import { takeKeys } from './trust.js';

/** Returns the choices in the page's address: the part after `#`, as `chain=...&version=3&tensor=...`. */
function wishes() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/**
 * Writes the choices into the address, so that it can be sent to others.
 * @param {Record<string, string | undefined>} changed
 */
function remember(changed) {
  const all = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(changed)) {
    if (value === undefined) all.delete(key);
    else all.set(key, value);
  }
  history.replaceState(null, '', `#${all}`);
}

/** Removes everything from the address except the name of the opened object. @param {Record<string, string>} named */
function rename(named) {
  history.replaceState(null, '', `#${new URLSearchParams(named)}`);
}

async function openAddress(text, wish = {}) {
  let address;
  try {
    address = new URL(text, location.protocol.startsWith('http') ? location.href : undefined);
  } catch {
    say('An address begins with http:// or https://.', true);
    return;
  }
  if (!/^https?:$/.test(address.protocol)) {
    say('An address begins with http:// or https://.', true);
    return;
  }
  const kind = address.pathname.endsWith('.dcf') ? 'link' : 'chain';
  if (wish[kind] === undefined) rename({ [kind]: address.href });
  at('address').value = address.href;
  if (kind === 'link') {
    closeChain();
    await showLink(decodeURIComponent(address.pathname.split('/').pop()), () => httpSource(address), { remote: true, wish });
  } else {
    closeLink();
    await showChain(address.href, httpStore(address), { remote: true, wish });
  }
}

/** @param {[string, File][]} all path and file, as dropped or chosen */
async function openFiles(all) {
  const files = await takeKeys(all);
  if (files.length === 0) return;
  const chain = chainIn(files);
  if (chain !== null) {
    rename({});
    closeLink();
    await showChain(chain.name, filesStore(chain.files), { remote: false });
    return;
  }
  const bases = files.filter(([path]) => path.endsWith('.safetensors')).map(([, file]) => file);
  const others = files.filter(([path]) => !path.endsWith('.safetensors'));
  if (others.length === 0) {
    await takeBase(bases);
    return;
  }
  if (others.length > 1 && others.some(([path]) => path.includes('/'))) {
    say('This folder is not a chain: it has no chain.json.', true);
    return;
  }
  const [, file] = others.find(([path]) => path.endsWith('.dcf')) ?? others[0];
  const { tensor } = wishes();
  rename({});
  closeChain();
  await showLink(file.name, async () => blobSource(file), { baseFiles: bases, wish: tensor === undefined ? {} : { tensor } });
}

/** Number of base64 characters that are decoded at once: whole groups of four. */
const STRETCH = 2 ** 22;

/** @param {string} text base64, without spaces */
function unbase64(text) {
  const padding = text.endsWith('==') ? 2 : text.endsWith('=') ? 1 : 0;
  const bytes = new Uint8Array((text.length / 4) * 3 - padding);
  let at = 0;
  for (let i = 0; i < text.length; i += STRETCH) {
    const part = atob(text.slice(i, i + STRETCH));
    for (let k = 0; k < part.length; k++) bytes[at++] = part.charCodeAt(k);
  }
  return bytes;
}

/** @type {[string, File][] | null} */
let inside = null;

/** Returns files that are embedded in the page. Their text is removed when it has been decoded, as it can be long. */
function embedded() {
  inside ??= [...document.querySelectorAll('script.data')].map((element) => {
    const bytes = unbase64(element.textContent);
    element.textContent = '';
    return /** @type {[string, File]} */ ([element.dataset.name, new File([bytes], element.dataset.name)]);
  });
  return inside;
}

async function openEmbedded(wish) {
  const files = embedded();
  if (files.length === 0) return;
  const chain = chainIn(files);
  if (chain === null) {
    const [name, file] = files[0];
    await showLink(name, async () => blobSource(file), { wish });
  } else {
    await showChain('An excerpt of a real chain: policy gradient on a small encoder (BERT)', filesStore(chain.files), { remote: false, wish });
    at('intro').hidden = false;
  }
}

async function openWished() {
  const wish = wishes();
  if (wish.link !== undefined || wish.chain !== undefined) await openAddress(wish.link ?? wish.chain, wish);
  else await openEmbedded(wish);
}

/** @param {string} id of an input @param {(file: File) => string} path */
function takeChosen(id, path) {
  at(id).addEventListener('change', () => {
    const files = [...at(id).files].map((file) => /** @type {[string, File]} */ ([path(file), file]));
    // Otherwise the same file could not be chosen again after a change.
    at(id).value = '';
    openFiles(files).catch(trouble);
  });
}

const trouble = (error) => say(refusal(error), true);
startCalculator();
startLinkView(remember);
startChainView(remember);
at('open-address').addEventListener('submit', (event) => {
  event.preventDefault();
  openAddress(at('address').value.trim()).catch(trouble);
});
takeChosen('files', (file) => file.name);
takeChosen('folder', (file) => file.webkitRelativePath);
document.addEventListener('dragover', (event) => {
  event.preventDefault();
  document.body.classList.add('dropping');
});
document.addEventListener('dragleave', (event) => {
  if (event.relatedTarget === null) document.body.classList.remove('dropping');
});
document.addEventListener('drop', (event) => {
  event.preventDefault();
  document.body.classList.remove('dropping');
  entriesOf(event.dataTransfer).then(openFiles).catch(trouble);
});
document.addEventListener('keydown', (event) => {
  if (event.key === '/' && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? '') && !at('link').hidden) {
    event.preventDefault();
    at('search').focus();
  }
  if (event.key === 'Escape' && !at('tensor').hidden) at('tensor-close').click();
});
window.addEventListener('hashchange', () => openWished().catch(trouble));
openWished().catch(trouble);
