/** Names that files may have: SPEC section 12. */

const DEVICE = /^(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9\u00b9\u00b2\u00b3])$/;

/** A to Z as a to z, nothing else. @param {string} text */
export const withoutCase = (text) => text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());

/** @param {string} name */
export function isPlainName(name) {
  const bytes = new TextEncoder().encode(name).length;
  const stem = withoutCase(name.split('.')[0].replace(/ +$/, ''));
  return bytes >= 1 && bytes <= 255 && !name.startsWith('.') && !/[/\\:\u0000-\u001f\u007f-\u009f]/.test(name) &&
    !DEVICE.test(stem);
}
