/**
 * Long work on the open link. It runs in turn, because there is one progress bar. A task of a button aborts the task before
 * it, but waits for the reading of the segments, without which the link's card stays half empty. Only the user stops that.
 */
import { byId } from './dom.js';

/** @typedef {import('../src/work.js').WorkOptions} WorkOptions */

/** Resolves when the work before has ended. */
let lastWork = Promise.resolve();
let reading = new AbortController();
let task = new AbortController();
/** Number of links closed so far: the bar is not theirs any more. */
let closed = 0;

/** Stops all work. */
export function stopWork() {
  reading.abort();
  task.abort();
}

/** Stops all work, and does not wait for it, because the link is closed. */
export function dropWork() {
  stopWork();
  closed += 1;
  lastWork = Promise.resolve();
  byId('working').hidden = true;
}

/** Reads after all other work. @template T @param {string} label @param {(options: WorkOptions) => Promise<T>} job */
export function startReading(label, job) {
  reading = new AbortController();
  return inTurn(label, reading.signal, job);
}

/**
 * Starts a task, and aborts the task before it.
 * @template T
 * @param {string} label
 * @param {(options: WorkOptions) => Promise<T>} job
 */
export function startTask(label, job) {
  task.abort();
  task = new AbortController();
  return inTurn(label, task.signal, job);
}

/** The signal of the newest task. If it is still the same later, no other task was started. */
export const newestTask = () => task.signal;

/**
 * Runs work when the work before it has ended.
 * @template T
 * @param {string} label
 * @param {AbortSignal} signal
 * @param {(options: WorkOptions) => Promise<T>} job
 * @returns {Promise<T>} rejects as soon as the signal is aborted, even if the job notices that later
 */
function inTurn(label, signal, job) {
  const done = lastWork.then(() => withProgress(label, signal, job));
  lastWork = done.then(() => {}, () => {});
  return done;
}

/** Runs work with the progress bar and the button that stops it. */
async function withProgress(label, signal, job) {
  signal.throwIfAborted();
  const link = closed;
  const bar = byId('progress');
  byId('working').hidden = false;
  byId('working-label').textContent = label;
  bar.removeAttribute('value');
  const progress = (done, total) => {
    if (!signal.aborted) bar.value = total === 0 ? 1 : done / total;
  };
  const aborted = new Promise((_, reject) => { signal.addEventListener('abort', () => reject(signal.reason), { once: true }); });
  try {
    return await Promise.race([job({ progress, signal }), aborted]);
  } finally {
    if (link === closed) byId('working').hidden = true;
  }
}
