/** Files and folders that were dropped on the page. */

/** Maximum number of dropped files: a chain of a million versions is better opened by its address. */
const MOST_FILES = 200_000;

/**
 * Returns the files that were dropped, also those in dropped folders.
 * @param {DataTransfer} dropped
 * @returns {Promise<[string, File][]>} paths, which begin with the name of a dropped folder, and files
 */
export async function entriesOf(dropped) {
  // All are asked for before the first await: afterwards the browser has emptied `dropped`.
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
    // On file://, Chromium cannot read the files of a FileSystemEntry; other browsers have no FileSystemHandle.
    const folder = await handle;
    if (folder) await walkHandle(folder, '', found);
    else await walkEntry(entry, '', found);
  }
  return found;
}

function add(path, file, found) {
  if (found.length >= MOST_FILES) throw new Error(`more than ${MOST_FILES} files were dropped`);
  found.push([path, file]);
}

async function walkHandle(handle, folder, found) {
  const path = `${folder}${handle.name}`;
  if (handle.kind === 'file') {
    add(path, await handle.getFile(), found);
    return;
  }
  for await (const inner of handle.values()) await walkHandle(inner, `${path}/`, found);
}

async function walkEntry(entry, folder, found) {
  const path = `${folder}${entry.name}`;
  if (entry.isFile) {
    add(path, await fromBrowser((resolve, reject) => entry.file(resolve, reject)), found);
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    // The reader returns some entries at a time, and none at the end.
    const some = await fromBrowser((resolve, reject) => reader.readEntries(resolve, reject));
    if (some.length === 0) return;
    for (const inner of some) await walkEntry(inner, `${path}/`, found);
  }
}

/** The result of a call to the browser that takes callbacks. @param {(resolve: (value: any) => void, reject: (cause: any) => void) => void} call */
async function fromBrowser(call) {
  try {
    return await new Promise(call);
  } catch (cause) {
    throw new Error('this browser does not let the page read a dropped folder: use "Choose a folder"', { cause });
  }
}

/**
 * Finds a chain among files: the files beside the `chain.json` in the fewest folders. Null if there is none.
 * @param {[string, File][]} files
 * @returns {{ name: string, files: [string, File][] } | null}
 */
export function chainIn(files) {
  const places = files.filter(([path]) => /(^|\/)chain\.json$/.test(path)).map(([path]) => path.slice(0, -'chain.json'.length));
  if (places.length === 0) return null;
  const depth = (place) => place.split('/').length;
  const top = places.reduce((a, b) => (depth(b) < depth(a) ? b : a));
  const inside = files.filter(([path]) => path.startsWith(top)).map(([path, file]) => /** @type {[string, File]} */ ([path.slice(top.length), file]));
  return { name: top === '' ? 'chain' : top.slice(0, -1), files: inside };
}
