/**
 * Signed commits (spec/signatures.md): keys, the keys that a note counts for, and the versions that a reader with trust
 * accepts.
 */
import assert from 'node:assert/strict';
import test from 'node:test';
import { hashes } from '@noble/ed25519';
import { blake3Hex, bytesSource, openChain } from '../src/index.js';
import { Notes, parseKey } from '../src/signatures.js';
import { note, noteName, noteText, testKey } from './signing.mjs';
import { worked, workedDocument } from './worked.mjs';

const [alice, bob, mallory] = [testKey('alice', 1), testKey('bob.example/ä', 2), testKey('mallory', 3)];
const CHAIN = workedDocument('chain');
const FIRST = workedDocument('commit');
const encode = (/** @type {string} */ text) => new TextEncoder().encode(text);
const commitName = (version) => `commits/${String(version).padStart(20, '0')}.json`;

/**
 * Returns the commit of section 18 and others after it, all of the same state.
 * @param {number} count
 * @param {string} step
 */
function commits(count, step = '1') {
  const all = [FIRST];
  while (all.length < count) {
    const document = JSON.parse(new TextDecoder().decode(FIRST));
    const parent = blake3Hex(all[all.length - 1]);
    all.push(encode(JSON.stringify({ ...document, version: all.length, parent, metadata: { step } })));
  }
  return all;
}

/** @param {Record<string, Uint8Array>} objects which may change @param {string[]} [asked] names that were opened */
function storeOf(objects, asked = []) {
  return {
    async open(name) {
      asked.push(name);
      return objects[name] === undefined ? null : bytesSource(objects[name]);
    },
    list: async (folder) => Object.keys(objects).filter((name) => name.startsWith(`${folder}/`)).map((name) => name.slice(folder.length + 1)),
  };
}

/**
 * Returns the objects of a chain, some of whose commits have notes.
 * @param {Uint8Array[]} all
 * @param {Record<number, typeof alice[][]>} notes
 */
function chainOf(all, notes = {}) {
  const [{ files }] = JSON.parse(new TextDecoder().decode(FIRST)).routes;
  const objects = { 'chain.json': CHAIN, [`files/${files[0].digest}.dcf`]: worked('smallest') };
  all.forEach((commit, version) => { objects[commitName(version)] = commit; });
  for (const [version, each] of Object.entries(notes)) {
    for (const keys of each) {
      const [name, bytes] = note(keys, CHAIN, Number(version), all[version]);
      objects[name] = bytes;
    }
  }
  return objects;
}

const trusting = (keys, rest = {}) => ({ keys: keys.map((key) => key.text), ...rest });
const plan = (objects, options) => openChain(storeOf(objects)).plan(options);
const record = (all, version) => ({ version, commit: blake3Hex(all[version]), chain: blake3Hex(CHAIN) });
const seenAt = (all, version) => ({ version, commit: blake3Hex(all[version]) });

test('keys: the one form, with the ID of its own', () => {
  const { name, id, bytes } = parseKey(bob.text);
  assert.deepEqual([name, id, Buffer.from(bytes)], [bob.name, bob.id, bob.bytes]);
  // The example in the documentation of Go's golang.org/x/mod/sumdb/note.
  const go = parseKey('PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW');
  assert.deepEqual([go.name, go.id], ['PeterNeumann', 'c74f20a3']);
  const wrong = {
    'another ID': alice.text.replace(alice.id, '00000000'),
    'another name': alice.text.replace('alice', 'alicf'),
    'an ID in capitals': `${alice.name}+${alice.id.toUpperCase()}f+`,
    'no key': `${alice.name}+${alice.id}+`,
    'a space at the end': `${alice.text} `,
    'a line end': `${alice.text}\n`,
    'no name': testKey('', 1).text,
    'a space in the name': testKey('a b', 1).text,
    'a no-break space in the name': testKey('a\u00a0b', 1).text,
    'U+0085 in the name': testKey('a\u0085b', 1).text,
    'a control character in the name': testKey('a\u0001b', 1).text,
    'a lone surrogate in the name': testKey('a\ud800', 1).text,
    'base64 without an end': alice.text.slice(0, -1),
    'base64 of the other alphabet': `${alice.text.slice(0, -1)}_`,
    'another type of key': testKey('alice', 1, 2).text,
    'a private key': 'PRIVATE+KEY+alice+00000000+AAAA',
  };
  for (const [what, text] of Object.entries(wrong)) assert.throws(() => parseKey(text), { class: 'USAGE' }, what);
  // Characters that are not white space to Unicode, though they are to JavaScript's \s, and higher characters.
  for (const name of ['a\ufeffb', 'a\u007f', '\u{1f511}', 'a\u2060b']) assert.equal(parseKey(testKey(name, 1).text).name, name);
  assert.throws(() => parseKey(wrong['a private key']), (error) => !error.message.includes('AAAA'));
});

test('trust that cannot be meant so is refused before anything is read', async () => {
  const asked = [];
  const chain = openChain(storeOf(chainOf(commits(1)), asked));
  const wrong = {
    'no key': trusting([]),
    'a quorum of 0': trusting([alice], { quorum: 0 }),
    'a quorum of 1.5': trusting([alice, bob], { quorum: 1.5 }),
    'a quorum above the keys': trusting([alice, bob], { quorum: 3 }),
    'a key twice': trusting([alice, bob, alice]),
    'a key under two names': trusting([alice, testKey('bob', 1)]),
    'seen without a digest': trusting([alice], { seen: { version: 1, commit: '' } }),
    'seen without a version': trusting([alice], { seen: { version: -1, commit: blake3Hex(FIRST) } }),
  };
  for (const [what, trust] of Object.entries(wrong)) {
    for (const work of [chain.head({ trust }), chain.plan({ trust }), chain.replay({ trust })]) {
      await assert.rejects(work, { class: 'USAGE', rule: null }, what);
    }
  }
  assert.deepEqual(asked, []);
});

/** Makes a store that cannot list. @param {Record<string, Uint8Array>} objects @param {string[]} [asked] */
const unlisted = (objects, asked) => ({ open: storeOf(objects, asked).open });

/**
 * Returns the own note of a key on a version.
 * @param {typeof alice} key
 * @param {Uint8Array[]} all
 * @param {number} version
 */
const own = (key, all, version, by = [key]) => {
  const [name, bytes] = note(by, CHAIN, version, all[version]);
  return { [name.slice(0, -64) + key.hash]: bytes };
};

test('own notes are found without a list', async () => {
  const all = commits(5);
  const objects = { ...chainOf(all, { 3: [[alice]] }), ...own(alice, all, 1), ...own(alice, all, 2), ...own(bob, all, 2) };
  const chain = openChain(unlisted(objects));
  const trust = trusting([alice, bob]);
  assert.deepEqual([await chain.head(), await chain.head({ trust }), (await chain.plan({ trust })).unsigned], [4, 2, 4]);
  assert.equal((await chain.plan({ trust: { ...trust, quorum: 2 } })).version, 2);
  assert.equal((await chain.plan({ trust: trusting([alice]), held: record(all, 1) })).version, 2);
  assert.equal((await chain.plan({ trust, version: 1 })).version, 1);
  await assert.rejects(chain.plan({ trust, version: 3 }), { rule: 'R-SIG-01' });
  await assert.rejects(chain.plan({ trust: trusting([mallory]) }), { rule: 'R-SIG-01' });
  await assert.rejects(chain.plan({ trust, held: record(all, 3) }), { rule: 'R-CHN-14' });
  await assert.rejects(chain.plan({ trust: { ...trust, seen: seenAt(all, 3) } }), { rule: 'R-CHN-14' });
  assert.equal((await chain.plan({ trust, held: record(all, 3), accept: blake3Hex(all[2]) })).version, 2);
  assert.equal(await openChain(storeOf(objects)).head({ trust }), 3);
});

test('own notes are asked for first, and a list only if they are not enough', async () => {
  const all = commits(2);
  const objects = { ...chainOf(all), ...own(alice, all, 1) };
  const lists = [];
  const store = storeOf(objects);
  const counting = { ...store, list: (folder) => (lists.push(folder), store.list(folder)) };
  for (const [trust, expected] of [[trusting([alice]), 0], [trusting([alice, bob]), 0], [trusting([alice, bob], { quorum: 2 }), 1]]) {
    lists.length = 0;
    await openChain(counting).plan({ trust }).catch(({ rule }) => assert.equal(rule, 'R-SIG-01'));
    assert.equal(lists.filter((folder) => folder === 'signatures').length, expected);
  }
  // The held version is the lowest that can be the head.
  const asked = [];
  await assert.rejects(openChain(unlisted(chainOf(all), asked)).plan({ trust: trusting([alice]), held: record(all, 1) }), { rule: 'R-CHN-14' });
  assert.deepEqual(asked.filter((name) => name.startsWith('signatures/') && !name.includes('00000000000000000001')), []);
});

test('a key may be trusted for some chains alone', async () => {
  const all = commits(1);
  const objects = chainOf(all, { 0: [[alice, bob]] });
  const [here, there] = [blake3Hex(CHAIN), blake3Hex(FIRST)];
  const given = (...keys) => ({ keys });
  for (const trust of [given(`${alice.text} ${here}`), given(`${alice.text} ${there} ${here}`), given(`${bob.text} ${there}`, alice.text)]) {
    assert.equal((await plan(objects, { trust })).version, 0);
  }
  for (const trust of [given(`${alice.text} ${there}`), { ...given(alice.text, `${bob.text} ${there}`), quorum: 2 }]) {
    for (const more of [{}, { held: { ...record(all, 0), chain: there } }, { version: 9 }]) {
      const refused = { class: 'CHAIN', rule: 'R-SIG-05', section: '23.3' };
      await assert.rejects(plan(objects, { trust, ...more }), refused);
    }
  }
  await assert.rejects(plan(objects, { trust: given(`${alice.text} all`) }), { class: 'USAGE', rule: null });
});

/** True if the quorum has signed version 0, with these objects in the folder of signatures. */
async function isSigned(signatures, trust) {
  const objects = { ...chainOf(commits(1)), ...signatures };
  const [byHead, byNumber] = await Promise.allSettled([plan(objects, { trust }), plan(objects, { trust, version: 0 })]);
  assert.equal(byHead.status, byNumber.status);
  if (byHead.status === 'rejected') {
    for (const { reason } of [byHead, byNumber]) assert.deepEqual([reason.class, reason.rule, reason.section], ['CHAIN', 'R-SIG-01', '23.3']);
  }
  return byHead.status === 'fulfilled';
}

test('the four conditions under which a note counts', async () => {
  const commit = blake3Hex(FIRST);
  const text = noteText(blake3Hex(CHAIN), 0, commit);
  const named = (/** @type {string | Uint8Array} */ content, name = noteName(0, commit, Buffer.from(content))) => ({ [name]: Buffer.from(content) });
  const alicesTrust = trusting([alice, bob]);
  const right = `${text}\n${alice.line(text)}`;
  const counts = {
    'as it must be': right,
    'lines of strangers, of any ID and signature': `${text}\n${mallory.line('x')}${alice.line(text)}\u2014 x ${Buffer.alloc(68).toString('base64')}\n`,
    'shorter and longer lines of strangers': `${text}\n${[5, 67, 69, 76, 2424].map((length) => (
      `\u2014 x ${Buffer.alloc(length).toString('base64')}\n`)).join('')}${alice.line(text)}`,
    'a longer line with the name of a trusted key': `${right}\u2014 alice ${Buffer.alloc(76).toString('base64')}\n`,
    'the name of a trusted key with another ID': `${text}\n${testKey('alice', 9).line('x')}${alice.line(text)}`,
    'a line twice': `${text}\n${alice.line(text)}${alice.line(text)}`,
    'a hundred lines': `${text}\n${mallory.line('x').repeat(99)}${alice.line(text)}`,
    '16384 bytes': filled(right, 16384),
  };
  const flipped = Buffer.from(right);
  flipped[flipped.length - 10] ^= 1;
  const [mark, name, base64] = alice.line(text).trimEnd().split(' ');
  const signed = Buffer.from(base64, 'base64');
  const line = (/** @type {Uint8Array} */ bytes) => `${mark} ${name} ${Buffer.from(bytes).toString('base64')}\n`;
  const doesNot = {
    // 1
    '16385 bytes': filled(right, 16385),
    // 3
    'another chain': `${noteText(blake3Hex(FIRST), 0, commit)}\n${alice.line(noteText(blake3Hex(FIRST), 0, commit))}`,
    'another version': `${noteText(blake3Hex(CHAIN), 1, commit)}\n${alice.line(noteText(blake3Hex(CHAIN), 1, commit))}`,
    'another commit': `${noteText(blake3Hex(CHAIN), 0, blake3Hex(CHAIN))}\n${alice.line(noteText(blake3Hex(CHAIN), 0, blake3Hex(CHAIN)))}`,
    'another text, with signatures of the right one': right.replace('commit v1', 'commit v2'),
    'a fifth line': `${text}x\n\n${alice.line(`${text}x\n`)}`,
    'no empty line': `${text}${alice.line(text)}`,
    'two empty lines': `${text}\n\n${alice.line(text)}`,
    'no lines': `${text}\n`,
    'nothing': '',
    'no line end at the end': right.slice(0, -1),
    'an empty line at the end': `${right}\n`,
    'something after it': `${right}x\n`,
    'a byte order mark': `\ufeff${right}`,
    'line ends of Windows': right.replaceAll('\n', '\r\n'),
    'no UTF-8': Buffer.concat([Buffer.from(right), Buffer.from([0xe2, 0x80, 0x94, 0x20, 0xff, 0x20]), Buffer.from(`${base64}\n`)]),
    'a hyphen for the dash': right.replace('\u2014', '-'),
    'two spaces': right.replace('\u2014 ', '\u2014  '),
    'a hundred and one lines': `${text}\n${mallory.line('x').repeat(100)}${alice.line(text)}`,
    'a line without a name': `${right}\u2014  ${base64}\n`,
    'a name with a plus sign': `${right}\u2014 a+b ${base64}\n`,
    'a name with white space': `${right}\u2014 a\u3000b ${base64}\n`,
    'a signature cut': `${text}\n${line(signed.subarray(0, 67))}`,
    'a line of a stranger without a signature': `${right}\u2014 x ${Buffer.alloc(4).toString('base64')}\n`,
    'a line of a stranger without a key ID': `${right}\u2014 x ${Buffer.alloc(3).toString('base64')}\n`,
    'base64 without padding': right.replace('=', ''),
    'unused bits of base64': right.replace(/(.)=\n$/, (_, last) => `${String.fromCharCode(last.charCodeAt(0) + 1)}=\n`),
    // 4
    'no line of a trusted key': `${text}\n${mallory.line(text)}`,
    'a signature of something else': `${text}\n${alice.line('x')}`,
    'the text with the empty line signed': `${text}\n${alice.line(`${text}\n`)}`,
    'a bit of the signature': flipped,
    'a longer line of the same key': `${right}${line(Buffer.concat([signed, Buffer.alloc(1)]))}`,
    'a shorter line of the same key': `${right}${line(signed.subarray(0, 5))}`,
    'a wrong line of the same key': `${text}\n${alice.line(text)}${alice.line('x')}`,
    'a wrong line of another trusted key': `${text}\n${alice.line(text)}${bob.line('x')}`,
    'the name of another trusted key': `${text}\n${alice.line(text).replace(' alice ', ` ${bob.name} `)}`,
    'S above the order of the group': `${text}\n${line(aboveOrder(signed))}`,
  };
  for (const [what, content] of Object.entries(counts)) assert.equal(await isSigned(named(content), alicesTrust), true, what);
  for (const [what, content] of Object.entries(doesNot)) assert.equal(await isSigned(named(content), alicesTrust), false, what);
  // 2, and names
  const [whole] = Object.keys(named(right));
  const names = [
    noteName(0, commit, Buffer.from('x')), noteName(1, commit, Buffer.from(right)), noteName(0, blake3Hex(CHAIN), Buffer.from(right)),
    `${whole}.txt`, whole.slice(0, -1), whole.replace(/[a-f]/g, (letter) => letter.toUpperCase()), whole.replace('/0', '/'), `${whole}/x`,
  ];
  for (const other of names) assert.equal(await isSigned(named(right, other), alicesTrust), false, other);
  // Notes that do not count do not affect others.
  const rubbish = Object.assign({}, ...Object.values(doesNot).map((content) => named(content)));
  assert.equal(await isSigned({ ...rubbish, ...named(right) }, alicesTrust), true);
});

/**
 * Returns a note of this many bytes, by another line whose key has a long name.
 * @param {string} note
 * @param {number} bytes
 */
function filled(note, bytes) {
  const end = ` ${Buffer.alloc(68).toString('base64')}\n`;
  return `${note}\u2014 ${'x'.repeat(bytes - Buffer.byteLength(`${note}\u2014 ${end}`))}${end}`;
}

/**
 * Returns the signature with the group's order added to its S, which the equation does not notice.
 * @param {Uint8Array} signed
 */
function aboveOrder(signed) {
  const order = 2n ** 252n + 27742317777372353535851937790883648493n;
  const bytes = Buffer.from(signed);
  let s = order;
  for (let i = 67; i >= 36; i--) s += BigInt(bytes[i]) << BigInt(8 * (i - 36));
  for (let i = 36; i < 68; i++, s >>= 8n) bytes[i] = Number(s & 255n);
  return bytes;
}

test('a quorum counts keys, not lines or notes', async () => {
  const both = trusting([alice, bob], { quorum: 2 });
  const [one, two] = [note([alice], CHAIN, 0, FIRST), note([bob], CHAIN, 0, FIRST)];
  const again = note([alice, mallory], CHAIN, 0, FIRST);
  assert.equal(await isSigned(Object.fromEntries([one, again]), both), false);
  assert.equal(await isSigned(Object.fromEntries([note([alice, alice], CHAIN, 0, FIRST)]), both), false);
  assert.equal(await isSigned(Object.fromEntries([one, again, two]), both), true);
  assert.equal(await isSigned(Object.fromEntries([note([bob, alice], CHAIN, 0, FIRST)]), both), true);
});

test('of the notes on one commit the first 64 are looked at', async () => {
  const [name, bytes] = note([alice], CHAIN, 0, FIRST);
  const start = name.slice(0, -64);
  const rubbish = (count, digit) => Object.fromEntries(Array.from({ length: count }, (_, i) => [`${start}${String(i).padStart(64, digit)}`, bytes]));
  assert.equal(await isSigned({ ...rubbish(63, '0'), [name]: bytes }, trusting([alice])), true);
  assert.equal(await isSigned({ ...rubbish(64, '0'), [name]: bytes }, trusting([alice])), false);
  // The notes above do not count on other commits, or under other names.
  const others = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [`${start}${String(i).padStart(63, '0')}`, bytes]));
  const elsewhere = Object.fromEntries(Array.from({ length: 100 }, (_, i) => [noteName(0, String(i).padStart(64, '0'), bytes), bytes]));
  assert.equal(await isSigned({ ...others, ...elsewhere, [name]: bytes, ...rubbish(100, 'f') }, trusting([alice])), true);
});

test('a valid line that somebody copies everywhere is verified once', async (t) => {
  const { sha512 } = hashes;
  t.after(() => { hashes.sha512 = sha512; });
  let verified = 0;
  hashes.sha512 = (bytes) => { verified += 1; return sha512(bytes); };
  const notes = Array.from({ length: 30 }, (_, i) => note([...Array(50).fill(alice), testKey(`${i}`, 3)], CHAIN, 0, FIRST));
  await plan({ ...chainOf(commits(1)), ...Object.fromEntries(notes) }, { trust: trusting([alice, bob]) });
  assert.equal(verified, 1);
});

test('a note that goes away between the list and its reading is not there', async () => {
  const [name, bytes] = note([alice], CHAIN, 0, FIRST);
  const store = storeOf({ ...chainOf(commits(1)), [name]: bytes });
  const gone = { ...store, open: async (own) => (own === name ? null : store.open(own)) };
  await assert.rejects(openChain(gone).plan({ trust: trusting([alice]) }), { rule: 'R-SIG-01' });
});

test('the head is the highest version that is signed, and what lies above is said', async () => {
  const all = commits(7);
  const objects = chainOf(all, { 4: [[alice]], 5: [[alice], [bob]], 6: [[mallory]] });
  const trust = trusting([alice, bob]);
  const chain = openChain(storeOf(objects));
  assert.deepEqual([await chain.head(), await chain.head({ trust }), await chain.head({ trust: trusting([mallory]) })], [6, 5, 6]);
  for (const held of [null, record(all, 4), record(all, 5)]) {
    const { version, unsigned } = await plan(objects, { trust, held });
    assert.deepEqual([version, unsigned], [5, 6]);
  }
  assert.deepEqual((await plan(objects, { trust: { ...trust, quorum: 2 } })).version, 5);
  assert.equal((await plan(objects, { trust: trusting([mallory]) })).unsigned, null);
  const { version, unsigned } = await chain.replay({ trust });
  assert.deepEqual([version, unsigned], [5, 6]);
  // A version that is requested by its number must be signed itself.
  await assert.rejects(plan(objects, { trust, version: 6 }), { class: 'CHAIN', rule: 'R-SIG-01' });
  await assert.rejects(plan(objects, { trust, version: 3 }), { class: 'CHAIN', rule: 'R-SIG-01' });
  await assert.rejects(plan(objects, { trust, version: 7 }), { class: 'CHAIN', rule: 'R-CHN-03' });
  assert.deepEqual((await plan(objects, { trust, version: 4, held: record(all, 5) })).version, 4);
  // A key was removed.
  await assert.rejects(plan(objects, { trust: trusting([bob]), held: record(all, 6) }), { rule: 'R-CHN-14' });
  // An unsigned commit of invalid bytes is not even parsed as a document.
  assert.equal((await plan({ ...objects, [commitName(7)]: encode('rubbish') }, { trust })).version, 5);
  await assert.rejects(plan({ ...objects, [commitName(7)]: encode('rubbish') }, { trust, version: 7 }), { rule: 'R-SIG-01' });
});

test('nothing signed', async () => {
  const all = commits(3);
  const [none, empty] = [chainOf(all), { 'chain.json': CHAIN }];
  const trust = trusting([alice]);
  for (const objects of [none, empty]) {
    await assert.rejects(plan(objects, { trust }), { rule: 'R-SIG-01' });
    await assert.rejects(plan(objects, { trust, held: record(all, 1) }), { rule: 'R-CHN-14' });
    await assert.rejects(plan(objects, { trust: { ...trust, seen: seenAt(all, 1) } }), { rule: 'R-CHN-14' });
    await assert.rejects(plan(objects, { trust, held: record(all, 2), accept: blake3Hex(all[1]) }), { rule: 'R-SIG-01' });
  }
});

test('commits below need no signature of their own, but must lead there', async () => {
  const all = commits(6);
  const objects = chainOf(all, { 5: [[alice]] });
  const trust = trusting([alice]);
  assert.equal((await plan(objects, { trust, held: record(all, 2) })).version, 5);
  // A foreign commit between two honest ones.
  objects[commitName(3)] = commits(4, '2')[3];
  await assert.rejects(plan(objects, { trust, held: record(all, 2) }), { rule: 'R-CHN-04' });
});

test('the newest head that was seen is recorded, and no older one is taken', async () => {
  const all = commits(7);
  const objects = chainOf(all, { 3: [[alice]], 4: [[alice]], 5: [[alice]], 6: [[alice]] });
  const told = [];
  const trust = trusting([alice], { record: (seen) => { told.push(seen); } });
  await plan(objects, { trust });
  assert.deepEqual(told, [seenAt(all, 6)]);
  const seen = told[0];
  await plan(objects, { trust: { ...trust, seen } });
  assert.equal(told.length, 1, 'nothing new');
  const older = Object.fromEntries(Object.entries(objects).filter(([name]) => !name.includes('0000000006')));
  for (const held of [null, record(all, 4)]) {
    await assert.rejects(plan(older, { trust: { ...trust, seen }, held }), { rule: 'R-CHN-14' });
    assert.equal((await plan(older, { trust, held })).version, 5);
  }
  assert.deepEqual(told.slice(1), [seenAt(all, 5), seenAt(all, 5)]);
  // A version that is requested by its number is not recorded as a head.
  told.length = 0;
  assert.equal((await plan(objects, { trust: { ...trust, seen }, version: 4 })).version, 4);
  assert.deepEqual(told, []);
  // Another commit of that version, also signed.
  const fork = commits(8, '2');
  const forked = { ...chainOf(fork, { 6: [[alice]], 7: [[alice]] }) };
  await assert.rejects(plan(forked, { trust: { ...trust, seen } }), { rule: 'R-CHN-05' });
  await assert.rejects(plan(forked, { trust: { ...trust, seen }, version: 6 }), { rule: 'R-CHN-05' });
  // The held version counts instead, if it is not older.
  assert.equal((await plan(forked, { trust: { ...trust, seen }, held: record(fork, 7) })).version, 7);
  // A head that step 3 refuses is not recorded.
  told.length = 0;
  await assert.rejects(plan(forked, { trust, held: record(all, 6) }), { rule: 'R-CHN-05' });
  assert.deepEqual(told, []);
  // No path begins with the seen head.
  const { from, path } = await plan(objects, { trust: { ...trust, seen: seenAt(all, 5) } });
  assert.deepEqual([from, path.length], [null, 1]);
});

test('it is recorded before anything is applied', async () => {
  const all = commits(2);
  const objects = chainOf(all, { 1: [[alice]] });
  const asked = [];
  const seen = [];
  const trust = trusting([alice], { record: async (one) => {
    await new Promise((resolve) => { setImmediate(resolve); });
    seen.push(one, [...asked]);
  } });
  await openChain(storeOf(objects, asked)).replay({ trust });
  assert.deepEqual(seen[0], seenAt(all, 1));
  assert.ok(seen[1].length > 0 && seen[1].every((name) => !name.startsWith('files/')), String(seen[1]));
  assert.ok(asked.some((name) => name.startsWith('files/')));
  // If the head cannot be recorded, nothing is applied.
  asked.length = 0;
  const full = trusting([alice], { record: () => { throw new Error('the disk is full'); } });
  await assert.rejects(openChain(storeOf(objects, asked)).replay({ trust: full }), /the disk is full/);
  assert.ok(asked.every((name) => !name.startsWith('files/')));
});

test('a step back that is accepted sets aside what is held and was seen, but not trust', async () => {
  const all = commits(6);
  const [three, four] = [chainOf(all.slice(0, 4)), chainOf(all.slice(0, 4), { 3: [[alice]] })];
  const told = [];
  const trust = trusting([alice], { seen: seenAt(all, 5), record: (seen) => { told.push(seen); } });
  const accept = blake3Hex(all[3]);
  for (const held of [null, record(all, 4), record(all, 5)]) {
    await assert.rejects(plan(four, { trust, held }), { rule: 'R-CHN-14' });
    assert.equal((await plan(four, { trust, held, accept })).version, 3);
    assert.equal((await plan(four, { trust, held, accept, version: 3 })).version, 3);
    await assert.rejects(plan(three, { trust, held, accept }), { rule: 'R-SIG-01' });
    await assert.rejects(plan(four, { trust, held, accept: blake3Hex(all[2]) }), { rule: 'R-CHN-14' });
  }
  assert.deepEqual(told, Array.from({ length: 6 }, () => seenAt(all, 3)));
  // Version 3 is accepted, not version 2, which is the highest signed one.
  const two = chainOf(all.slice(0, 4), { 2: [[alice]] });
  await assert.rejects(plan(two, { trust, held: record(all, 4), accept }), { rule: 'R-CHN-14' });
});

test('the bytes that were verified are those that are used', async () => {
  const all = commits(3);
  const objects = chainOf(all, { 2: [[alice]] });
  const store = storeOf(objects);
  let read = 0;
  const changing = {
    ...store,
    async open(name) {
      if (name !== commitName(2)) return store.open(name);
      read += 1;
      return bytesSource(read === 1 ? all[2] : commits(3, '2')[2]);
    },
  };
  const { commit } = await openChain(changing).replay({ trust: trusting([alice]) });
  assert.deepEqual([commit, read], [blake3Hex(all[2]), 1]);
});

test('commits are listed before the notes, which are stored before them', async () => {
  const order = [];
  const store = storeOf(chainOf(commits(1), { 0: [[alice]] }));
  await openChain({ ...store, list: (folder) => (order.push(folder), store.list(folder)) }).head({ trust: trusting([alice]) });
  assert.deepEqual(order, ['commits', 'signatures']);
});

test('who has signed, for those who show it', async () => {
  const all = commits(1);
  const notes = new Notes(storeOf(chainOf(all, { 0: [[alice, mallory], [bob]] })), blake3Hex(CHAIN));
  const keys = [alice, bob].map((key) => parseKey(key.text));
  assert.deepEqual((await notes.signers(0, blake3Hex(FIRST), keys, 2)).map((key) => key.name), ['alice', bob.name]);
  const claimed = (await notes.on(0, blake3Hex(FIRST))).flatMap(({ lines }) => lines.map(({ name }) => name));
  assert.deepEqual(claimed.sort(), ['alice', bob.name, 'mallory']);
  assert.deepEqual(await notes.on(1, blake3Hex(FIRST)), []);
});
