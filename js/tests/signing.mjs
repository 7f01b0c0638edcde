/** Signing for tests: keys and notes made with Node's own crypto, which the reader does not use to verify. */
import { createHash, createPrivateKey, createPublicKey, sign } from 'node:crypto';
import { blake3Hex } from '../src/index.js';

/** The bytes before the 32 bytes of a private key in PKCS #8. */
const PKCS8 = Buffer.from('302e020100300506032b657004220420', 'hex');

/**
 * Makes a key pair from a public seed: `text` is the public key, `line` makes the signature line of a text.
 * @param {string} name
 * @param {number} seed a byte
 * @param {number} [type] 1 stands for Ed25519
 */
export function testKey(name, seed, type = 1) {
  const secret = createPrivateKey({ key: Buffer.concat([PKCS8, Buffer.alloc(32, seed)]), format: 'der', type: 'pkcs8' });
  const bytes = Buffer.from(createPublicKey(secret).export({ format: 'jwk' }).x, 'base64url');
  const typed = Buffer.concat([Buffer.of(type), bytes]);
  const hash = createHash('sha256').update(`${name}\n`).update(typed).digest();
  const id = hash.subarray(0, 4);
  return {
    name, bytes, id: id.toString('hex'), hash: hash.toString('hex'),
    text: `${name}+${id.toString('hex')}+${typed.toString('base64')}`,
    /** @param {string} text */
    line: (text) => `\u2014 ${name} ${Buffer.concat([id, sign(null, Buffer.from(text), secret)]).toString('base64')}\n`,
  };
}

/** Returns the text to sign. @param {string} chain @param {number} version @param {string} commit digests */
export const noteText = (chain, version, commit) => `deltachain commit v1\n${chain}\n${version}\n${commit}\n`;

/** Returns the name of a note. @param {number} version @param {string} commit @param {Uint8Array} note */
export const noteName = (version, commit, note) =>
  `signatures/${String(version).padStart(20, '0')}-${commit}-${blake3Hex(note)}`;

/**
 * Makes a note on a commit, as name and bytes.
 * @param {ReturnType<typeof testKey>[]} keys
 * @param {Uint8Array} chain bytes of `chain.json`
 * @param {number} version
 * @param {Uint8Array} commit its bytes
 * @returns {[string, Uint8Array]}
 */
export function note(keys, chain, version, commit) {
  const text = noteText(blake3Hex(chain), version, blake3Hex(commit));
  const bytes = Buffer.from(`${text}\n${keys.map((key) => key.line(text)).join('')}`);
  return [noteName(version, blake3Hex(commit), bytes), bytes];
}
