/** Long work reports its progress, and can be aborted. */

/**
 * @typedef {object} WorkOptions
 * @property {(done: number, total: number) => void} [progress] called now and then, in bytes
 * @property {AbortSignal} [signal] ends the work with the signal's reason
 */

export {};
