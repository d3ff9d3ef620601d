import { Worker } from 'node:worker_threads';
import { programFile } from './program-file.ts';

// Node 20 does not give worker threads the loader of `--import tsx`.
const LOADED_BY_TSX = `
  const { workerData: { path, data } } = require('node:worker_threads');
  require('node:worker_threads').workerData = data;
  require('tsx/cjs');
  import('tsx/esm/api').then(({ register }) => {
    register();
    return import(path);
  });`;

/** A worker thread of a program of the tests, as the suite has compiled it or through tsx. */
export function startWorker(url: URL, data: unknown): Worker {
  const { path } = programFile(url);
  if (path.endsWith('.mjs')) return new Worker(path, { workerData: data });
  return new Worker(LOADED_BY_TSX, { eval: true, workerData: { path, data } });
}
