/** Links in place of typed arrays: bytes that are written, bytes that stay, and refusals. */
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import test from 'node:test';
import { bytesSource, checkMemory, hashMemory, open, openSafetensors, stateDigest, takeInPlace } from '../src/index.js';

const vectors = new URL('../../conformance/vectors/', import.meta.url);
const link = async (/** @type {string} */ name) => open(bytesSource(await readFile(new URL(`links/${name}.dcf`, vectors))));

/** Returns the tensors of a state in typed arrays of their own. @param {string} name */
async function memoryOf(name) {
  const { infos, readPiece } = await openSafetensors(bytesSource(await readFile(new URL(`states/${name}.safetensors`, vectors))));
  const memory = new Map();
  for (const { name: tensor, byteLength } of infos.values()) {
    memory.set(tensor, byteLength === 0 ? new Uint8Array() : await readPiece(tensor, 0));
  }
  return { memory, known: await hashMemory(memory, infos.values()) };
}

const bytesOf = (/** @type {Map<string, ArrayBufferView>} */ memory) =>
  [...memory].map(([name, { buffer, byteOffset, byteLength }]) => [name, [...new Uint8Array(buffer, byteOffset, byteLength)]]).sort();

test('several links in place of any typed arrays', async () => {
  const { memory, known } = await memoryOf('in-place-step-0');
  const { memory: wanted } = await memoryOf('in-place-step-2');
  // BF16 values as they are in the heap of a program.
  const heap = new Uint16Array(100);
  heap.set(new Uint16Array(memory.get('a').buffer, memory.get('a').byteOffset, 4), 7);
  memory.set('a', heap.subarray(7, 11));
  const links = [await link('in-place/step-1'), await link('in-place/step-2')];
  const next = await takeInPlace(links, memory, known);
  assert.deepEqual(bytesOf(memory), bytesOf(wanted));
  assert.deepEqual(heap.subarray(7, 11), memory.get('a'));
  assert.equal(heap.filter((lane, i) => lane !== 0 && (i < 7 || i > 10)).length, 0, 'nothing else is written');
  assert.equal(stateDigest(next.table.values()), links[1].header.target);
  await checkMemory(memory, next);
  // Continues with the next link.
  const third = await takeInPlace([await link('in-place/step-3')], memory, next);
  assert.deepEqual(bytesOf(memory), bytesOf((await memoryOf('in-place-step-3')).memory));
  await checkMemory(memory, third);
});

test('a wrong bit is noticed before anything is written', async () => {
  for (const [name, rule] of [['step-2', 'R-SUM-03'], ['step-2-direct', 'R-SUM-04']]) {
    for (const bit of [1, 0x40, 0x80]) {
      const { memory, known } = await memoryOf('in-place-step-1');
      const a = memory.get('a');
      a[0] ^= bit;
      const before = bytesOf(memory);
      await assert.rejects(takeInPlace([await link(`in-place/${name}`)], memory, known), { rule, tensor: 'a', section: '24.6' });
      assert.deepEqual(bytesOf(memory), before);
      await assert.rejects(checkMemory(memory, known), { class: 'STATE_MISMATCH', rule: 'R-SUM-04', tensor: 'a' });
    }
  }
});

test('a lane that no link codes is not looked at', async () => {
  const { memory, known } = await memoryOf('in-place-step-1');
  memory.get('a')[2] ^= 1;
  const next = await takeInPlace([await link('in-place/step-2')], memory, known);
  await assert.rejects(checkMemory(memory, next), { rule: 'R-SUM-04', tensor: 'a' });
});

test('what is not known, not there, or not the base', async () => {
  const step = await link('in-place/step-2');
  const { memory, known } = await memoryOf('in-place-step-1');
  const unknown = { table: known.table, sums: new Map([...known.sums].filter(([name]) => name !== 'b')) };
  const before = bytesOf(memory);
  await assert.rejects(takeInPlace([step], memory, unknown), { class: 'UNSUPPORTED', rule: null });
  await assert.rejects(checkMemory(memory, unknown), { rule: 'R-SUM-04', tensor: 'b' });
  await assert.rejects(takeInPlace([step], new Map([['a', memory.get('a')]]), known), { class: 'USAGE' });
  await assert.rejects(takeInPlace([await link('in-place/step-1')], memory, known), { class: 'WRONG_BASE', rule: 'R-APP-01' });
  await assert.rejects(takeInPlace([step], memory, known, { signal: AbortSignal.abort(new Error('enough')) }), /enough/);
  assert.deepEqual(bytesOf(memory), before);
});

test('sums of a link, and what is none', async () => {
  const sums = await (await link('in-place/pieces-second-alone')).sums();
  assert.deepEqual(sums?.get('t')?.map(({ coded }) => coded === null), [true, false]);
  assert.equal(await (await link('sums/none-crc')).sums(), null);
  assert.equal(await (await link('valid/one-lane')).sums(), null);
});
