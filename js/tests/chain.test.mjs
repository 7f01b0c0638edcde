/** Chains: cases that no vector shows. */
import assert from 'node:assert/strict';
import test from 'node:test';
import { blake3Hex, bytesSource, openChain } from '../src/index.js';
import { worked, workedDocument } from './worked.mjs';

/** Makes a store with the chain of SPEC section 18, whose file and a routes document appear after this many lists. */
function lateStore(lists) {
  const commit = workedDocument('commit');
  const { routes } = JSON.parse(new TextDecoder().decode(commit));
  const document = { deltachain: 1, version: 0, generation: 1, commit: blake3Hex(commit), routes, metadata: {} };
  let listed = 0;
  const late = () => listed >= lists;
  const objects = {
    'chain.json': () => workedDocument('chain'),
    'commits/00000000000000000000.json': () => commit,
    'routes/00000000000000000000-0000000001.json': () => (late() ? new TextEncoder().encode(JSON.stringify(document)) : null),
    [`files/${routes[0].files[0].digest}.dcf`]: () => (late() ? worked('smallest') : null),
  };
  return {
    async open(name) {
      const bytes = objects[name]?.() ?? null;
      return bytes === null ? null : bytesSource(bytes);
    },
    async list(folder) {
      if (folder === 'routes') listed += 1;
      return Object.keys(objects).filter((name) => name.startsWith(`${folder}/`) && objects[name]() !== null)
        .map((name) => name.slice(folder.length + 1));
    },
  };
}

test('a prune may come between: routes are listed again before a file is missed', async () => {
  assert.equal((await openChain(lateStore(2)).replay()).version, 0);
  // The routes are unchanged, so the missing file is an error.
  await assert.rejects(openChain(lateStore(3)).replay(), { class: 'CHAIN', rule: 'R-CHN-09' });
});

test('a step back that is accepted is found where nothing can be listed', async () => {
  const { open } = lateStore(0);
  const chain = openChain({ open });
  const held = { version: 7, commit: '0'.repeat(64), chain: blake3Hex(workedDocument('chain')) };
  await assert.rejects(chain.plan({ held }), { class: 'CHAIN', rule: 'R-CHN-14' });
  const plan = await chain.plan({ held, accept: blake3Hex(workedDocument('commit')) });
  assert.deepEqual([plan.version, plan.from, plan.path.length], [0, null, 1]);
});
