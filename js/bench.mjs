/**
 * Measures how fast links are applied: `node bench.mjs LINK BASE [ROUNDS]`. The base is in memory; each round proves
 * the whole result and writes it to memory. Prints MB of model per second, of elapsed and of processor time, for each
 * round; and the same for a comparison of all memory with its sums.
 */
import { readFile } from 'node:fs/promises';
import { bytesSource, checkMemory, hashMemory, memoryWriter, open, openSafetensors } from './src/index.js';

/**
 * Does the work and prints its rate.
 * @param {string} what @param {() => Promise<number>} work gives the bytes of the model
 */
async function measure(what, work) {
  const [begin, cpu] = [performance.now(), process.cpuUsage()];
  const megabytes = (await work()) / 1e6;
  const { user, system } = process.cpuUsage(cpu);
  const rate = (/** @type {number} */ ms) => (megabytes / (ms / 1e3)).toFixed(0);
  console.log(`${what}: ${rate(performance.now() - begin)} MB/s elapsed, ${rate((user + system) / 1e3)} MB/s processor`);
}

const [linkPath, basePath, rounds = '6'] = process.argv.slice(2);
const linkBytes = await readFile(linkPath);
const baseBytes = await readFile(basePath);
for (let round = 0; round < Number(rounds); round++) {
  const base = await openSafetensors(bytesSource(baseBytes));
  for (const what of ['base hashed', 'base known']) {
    await measure(what, async () => {
      const table = await (await open(bytesSource(linkBytes))).apply(base, memoryWriter());
      return [...table.values()].reduce((sum, tensor) => sum + tensor.byteLength, 0);
    });
  }
  const whole = new Map([['all', baseBytes.subarray(0, baseBytes.length - (baseBytes.length % 8))]]);
  const bytes = whole.get('all')?.length ?? 0;
  const known = await hashMemory(whole, [{ ...[...base.infos.values()][0], name: 'all', byteLength: bytes }]);
  await measure('sums compared', async () => {
    await checkMemory(whole, known);
    return bytes;
  });
}
