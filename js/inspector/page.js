/** The page: opens and shows files that are embedded, dropped, chosen or named by an address. */
import { blobSource, filesStore, httpSource, httpStore } from '../src/index.js';
import { startCalculator } from './calculator.js';
import { closeChain, showChain, startChainView } from './chain-view.js';
import { byId, refusal, say } from './dom.js';
import { entriesOf, chainIn } from './dropped.js';
import { embeddedIn, linksIn } from './embedded.js';
import { closeLink, setBaseFiles, showLink, startLinkView } from './link-view.js';
import { extractKeys } from './trust.js';

/** Returns the address's fragment, such as `chain=...&version=3&tensor=...`, as key-value pairs. */
function wishes() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** Changes keys of the fragment, so that the address opens the same view. @param {Record<string, string | undefined>} changed */
function remember(changed) {
  const all = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(changed)) {
    if (value === undefined) all.delete(key);
    else all.set(key, value);
  }
  history.replaceState(null, '', `#${all}`);
}

/** Replaces the fragment with `named`: the rest belongs to what was open before. @param {Record<string, string>} named */
function replaceFragment(named) {
  history.replaceState(null, '', `#${new URLSearchParams(named)}`);
}

/** Returns the http address of a text; null if it is none. @param {string} text */
function parseAddress(text) {
  try {
    const address = new URL(text, location.protocol.startsWith('http') ? location.href : undefined);
    return /^https?:$/.test(address.protocol) ? address : null;
  } catch {
    return null;
  }
}

/** Opens a link or a chain. @param {string} text @param {Record<string, string>} [wish] the fragment, if it names the address */
async function openAddress(text, wish = {}) {
  const address = parseAddress(text);
  if (address === null) {
    say('An address begins with http:// or https://.', true);
    return;
  }
  const kind = address.pathname.endsWith('.dcf') ? 'link' : 'chain';
  const fromFragment = wish[kind] !== undefined;
  if (!fromFragment) replaceFragment({ [kind]: address.href });
  byId('address').value = address.href;
  if (kind === 'link') {
    closeChain();
    await showLink(decodeURIComponent(address.pathname.split('/').pop()), () => httpSource(address), { remote: true, wish });
  } else {
    closeLink();
    await showChain(address.href, httpStore(address), { remote: true, wish });
  }
}

/** Opens dropped or chosen files: keys, a chain, a base, or a link and perhaps its base. @param {[string, File][]} all path and file */
async function openFiles(all) {
  const files = await extractKeys(all);
  if (files.length === 0) return;
  const chain = chainIn(files);
  if (chain !== null) {
    replaceFragment({});
    closeLink();
    await showChain(chain.name, filesStore(chain.files), { remote: false });
    return;
  }
  const bases = files.filter(([path]) => path.endsWith('.safetensors')).map(([, file]) => file);
  const others = files.filter(([path]) => !path.endsWith('.safetensors'));
  if (others.length === 0) {
    await setBaseFiles(bases);
    return;
  }
  if (others.length > 1 && others.some(([path]) => path.includes('/'))) {
    say('This folder is not a chain: it has no chain.json.', true);
    return;
  }
  const [, file] = others.find(([path]) => path.endsWith('.dcf')) ?? others[0];
  await openLinkFile(file, bases);
}

/** @param {File} file @param {File[]} baseFiles */
async function openLinkFile(file, baseFiles) {
  // The tensor on show stays, so that a user can drop one link of a run after another and follow it.
  const { tensor } = wishes();
  replaceFragment({});
  closeChain();
  await showLink(file.name, async () => blobSource(file), { baseFiles, wish: tensor === undefined ? {} : { tensor } });
}

/** What the page has inside; null if it has nothing. */
const embedded = embeddedIn(document.querySelectorAll('script.data'));

/** Opens what the page has inside: a link or a chain that `inspect --html` put there, or the excerpt of a chain. */
async function openEmbedded(wish) {
  if (embedded === null) return;
  const { name, link, chain, isExcerpt } = embedded;
  if (chain === null) {
    closeChain();
    await showLink(name, async () => blobSource(link), { wish });
  } else {
    closeLink();
    await showChain(name, filesStore(chain), { remote: false, intro: isExcerpt, wish, hasLink: linksIn(chain) });
  }
}

/**
 * Arranges the page for its purpose. A page that shows a result has the forms at its end, closed; the page that opens
 * files begins with its form.
 */
function arrange() {
  if (embedded !== null && !embedded.isExcerpt) {
    document.title = `${embedded.name} - deltachain inspector`;
    byId('lead').hidden = true;
    // Such a page is sent to others, without the pages of the repository.
    for (const link of document.querySelectorAll('a.repository')) link.replaceWith(link.textContent);
    return;
  }
  byId('main').prepend(byId('open'));
  for (const id of ['open', 'calculator']) byId(id).open = true;
}

/** Opens what the address names, or else what the page holds. */
async function openWished() {
  const wish = wishes();
  if (wish.link !== undefined || wish.chain !== undefined) await openAddress(wish.link ?? wish.chain, wish);
  else await openEmbedded(wish);
}

/** Opens the files that the user chooses. @param {string} id of an input @param {(file: File) => string} path of a file */
function listenToFileInput(id, path) {
  byId(id).addEventListener('change', () => {
    const files = [...byId(id).files].map((file) => /** @type {[string, File]} */ ([path(file), file]));
    // Otherwise the browser reports no change if the same file, edited meanwhile, is chosen again.
    byId(id).value = '';
    openFiles(files).catch(trouble);
  });
}

const trouble = (error) => say(refusal(error), true);
arrange();
startCalculator();
startLinkView(remember);
startChainView(remember);
byId('open-address').addEventListener('submit', (event) => {
  event.preventDefault();
  openAddress(byId('address').value.trim()).catch(trouble);
});
listenToFileInput('files', (file) => file.name);
listenToFileInput('folder', (file) => file.webkitRelativePath);
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
  if (event.key === '/' && !/^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? '') && !byId('link').hidden) {
    event.preventDefault();
    byId('search').focus();
  }
  if (event.key === 'Escape' && !byId('tensor').hidden) byId('tensor-close').click();
});
window.addEventListener('hashchange', () => openWished().catch(trouble));
openWished().catch(trouble);
