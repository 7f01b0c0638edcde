/**
 * How fast links are applied: `node bench.mjs LINK BASE [ROUNDS]`. The base is in memory; each round proves the whole result
 * and writes it to memory. Prints MB of model per second, of elapsed and of processor time, for each round.
 */
import { readFile } from 'node:fs/promises';
import { bytesSource, memoryWriter, open, openSafetensors } from './src/index.js';

const [linkPath, basePath, rounds = '6'] = process.argv.slice(2);
const linkBytes = await readFile(linkPath);
const baseBytes = await readFile(basePath);
for (let round = 0; round < Number(rounds); round++) {
  const base = await openSafetensors(bytesSource(baseBytes));
  for (const known of [false, true]) {
    const [begin, cpu] = [performance.now(), process.cpuUsage()];
    const writer = memoryWriter();
    const table = await (await open(bytesSource(linkBytes))).apply(base, writer);
    const { user, system } = process.cpuUsage(cpu);
    const bytes = [...table.values()].reduce((sum, tensor) => sum + tensor.byteLength, 0) / 1e6;
    const rate = (/** @type {number} */ ms) => (bytes / (ms / 1e3)).toFixed(0);
    const what = known ? 'base known' : 'base hashed';
    console.log(`${what}: ${rate(performance.now() - begin)} MB/s elapsed, ${rate((user + system) / 1e3)} MB/s processor`);
  }
}
