/** The worked files and documents of SPEC.md. */
import { readFile } from 'node:fs/promises';

/** @param {string} name */
const text = (name) => readFile(new URL(`../../${name}`, import.meta.url), 'utf8');
const SPEC = await text('SPEC.md') + await text('spec/worked-files.md');

/** Reads a file of section 16. @param {string} name */
export function worked(name) {
  const dump = SPEC.split(`\`\`\`hexdump ${name}\n`)[1].split('```')[0];
  const digits = [...dump.matchAll(/^[0-9a-f]{8} {2}([0-9a-f ]*?) *\|/gm)].map((match) => match[1]).join(' ');
  return Uint8Array.from(digits.trim().split(/\s+/), (byte) => parseInt(byte, 16));
}

/** Reads a document of section 18. @param {string} kind */
export function workedDocument(kind) {
  return new TextEncoder().encode(SPEC.split(`\`\`\`json ${kind}\n`)[1].split('\n```')[0]);
}
