/** Files and folders that were dropped on the page. */

/** Maximum number of files in a dropped folder: a chain of a million versions is better opened by its address. */
const MOST = 200_000;

/**
 * @param {DataTransfer} dropped
 * @returns {Promise<[string, File][]>} paths, which begin with the name of a dropped folder, and files
 */
export async function entriesOf(dropped) {
  // Get all of them now: they are lost after the first `await`.
  const items = [...dropped.items].filter((item) => item.kind === 'file').map((item) => ({
    entry: item.webkitGetAsEntry(), file: item.getAsFile(), handle: item.getAsFileSystemHandle?.().catch(() => null),
  }));
  /** @type {[string, File][]} */
  const found = [];
  for (const { entry, file, handle } of items) {
    if (entry?.isDirectory !== true) {
      if (file !== null) found.push([file.name, file]);
      continue;
    }
    // Chromium refuses the files of entries to pages from disk, and other browsers have no handles.
    const own = await handle;
    if (own) await walkHandle(own, '', found);
    else await walkEntry(entry, '', found).catch(cannot);
  }
  return found;
}

function cannot(cause) {
  throw new Error('this browser does not let the page read a dropped folder: use "Choose a folder"', { cause });
}

function add(path, file, found) {
  if (found.length >= MOST) throw new Error(`more than ${MOST} files were dropped`);
  found.push([path, file]);
}

async function walkHandle(handle, folder, found) {
  const path = `${folder}${handle.name}`;
  if (handle.kind === 'file') return add(path, await handle.getFile(), found);
  for await (const one of handle.values()) await walkHandle(one, `${path}/`, found);
  return undefined;
}

async function walkEntry(entry, folder, found) {
  const path = `${folder}${entry.name}`;
  if (entry.isFile) return add(path, await new Promise((resolve, reject) => { entry.file(resolve, reject); }), found);
  const reader = entry.createReader();
  for (;;) {
    // The reader returns some entries at a time, and none at the end.
    const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (some.length === 0) return undefined;
    for (const one of some) await walkEntry(one, `${path}/`, found);
  }
}

/**
 * Finds the chain among files: the files beside the `chain.json` that is nearest to the top. Null if there is none.
 * @param {[string, File][]} files
 * @returns {{ name: string, files: [string, File][] } | null}
 */
export function chainIn(files) {
  const places = files.filter(([path]) => /(^|\/)chain\.json$/.test(path)).map(([path]) => path.slice(0, -'chain.json'.length));
  if (places.length === 0) return null;
  const top = places.reduce((a, b) => (b.length < a.length ? b : a));
  const own = files.filter(([path]) => path.startsWith(top)).map(([path, file]) => /** @type {[string, File]} */ ([path.slice(top.length), file]));
  return { name: top === '' ? 'chain' : top.slice(0, -1), files: own };
}
