/** Names that files may have (SPEC section 12), and versions in names of objects (section 17.1). */

const DEVICE = /^(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])$/;

/** @param {number} version */
export const versionDigits = (version) => String(version).padStart(20, '0');

/** Replaces A to Z by a to z, and nothing else. @param {string} text */
export const withoutCase = (text) => text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());

/** @param {string} name */
export function isPlainName(name) {
  const bytes = new TextEncoder().encode(name).length;
  const stem = withoutCase(name.split('.')[0].replace(/ +$/, ''));
  return bytes >= 1 && bytes <= 255 && !name.startsWith('.') && !/[/\\:\u0000-\u001f\u007f-\u009f]/.test(name) &&
    !DEVICE.test(stem);
}

/** Returns the folder of a path name: up to and including its last `/`. @param {string} name */
export const folderOf = (name) => name.slice(0, name.lastIndexOf('/') + 1);

/** Returns the folder of a path name, and the folders above it. @param {string} name */
export const foldersOf = (name) => name.split('/').slice(0, -1).map((_, i, parts) => parts.slice(0, i + 1).join('/'));

/** True if a layout writes files with such names. @param {string} name */
export const isOfLayouts = (name) => /\.safetensors(\.index\.json)?$/.test(withoutCase(name));

/** @param {string} name */
export function isPathName(name) {
  const parts = name.split('/');
  return parts.length <= 8 && new TextEncoder().encode(name).length <= 1024 &&
    parts.every((part) => isPlainName(part) && !/[ .]$/.test(part)) && !parts.slice(0, -1).some(isOfLayouts);
}
