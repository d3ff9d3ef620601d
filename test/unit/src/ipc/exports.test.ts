import assert from 'node:assert/strict';
import { test } from 'node:test';
import { findExport, rememberExport } from '../../../../src/ipc/exports.ts';
import { collectGarbage } from '../../../support/gc.ts';

test('a name that went to something else names that, also when the first is collected', async () => {
  rememberExport('event x', {});
  const later = {};
  rememberExport('event x', later);
  await collectGarbage();
  assert.equal(findExport('event x'), later);
  rememberExport('event y', {});
  await collectGarbage();
  assert.equal(findExport('event y'), undefined);
});
