/** Files and folders that were dropped on the page. */

/** Files that a dropped folder may have: a chain of a million versions is better opened by its address. */
const MOST = 200_000;

/**
 * @param {DataTransfer} dropped
 * @returns {Promise<[string, File][]>} path, beginning with the folder's name if a folder was dropped, and file
 */
export async function entriesOf(dropped) {
  // All entries have to be asked for now: they are gone when this function has waited.
  const items = [...dropped.items].filter((item) => item.kind === 'file')
    .map((item) => ({ entry: item.webkitGetAsEntry(), file: item.getAsFile() }));
  /** @type {[string, File][]} */
  const found = [];
  for (const { entry, file } of items) {
    // What comes from another program may have no entry.
    if (entry !== null) await walk(entry, '', found);
    else if (file !== null) found.push([file.name, file]);
  }
  return found;
}

async function walk(entry, folder, found) {
  if (found.length >= MOST) throw new Error(`more than ${MOST} files were dropped`);
  const path = `${folder}${entry.name}`;
  if (entry.isFile) {
    found.push([path, await new Promise((resolve, reject) => { entry.file(resolve, reject); })]);
    return;
  }
  const reader = entry.createReader();
  for (;;) {
    // It gives some at a time, and none at the end.
    const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
    if (some.length === 0) return;
    for (const one of some) await walk(one, `${path}/`, found);
  }
}

/**
 * The chain among files: what lies beside the `chain.json` that is nearest to the top. Null if there is none.
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
