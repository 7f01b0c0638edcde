/** What takes long can tell how far it is, and can be ended. */

/**
 * @typedef {object} WorkOptions
 * @property {(done: number, total: number) => void} [progress] called now and then, in bytes
 * @property {AbortSignal} [signal] ends the work with the signal's reason
 */

export {};
