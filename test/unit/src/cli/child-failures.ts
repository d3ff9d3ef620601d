/** What tests of a command with a child process share: children that fail, and what a failure leaves. */
import assert from 'node:assert/strict';
import { afterEach } from 'node:test';
import { Context } from '../../../../src/index.ts';
import { childrenOf, programFile } from '../../../support/program.ts';

const variables = ['CUFFI_TEST_DIES_AT', 'CUFFI_TEST_SAYS', 'CUFFI_TEST_FINDS'];

/** Takes away after each test what it has told the {@link fixture}s. */
export function clearVariablesAfterEach(): void {
  afterEach(() => {
    for (const name of variables) delete process.env[name];
  });
}

/** The option that replaces the child's program by one of the fixtures. */
export const fixture = (name: string): { readonly program: string } => ({
  program: programFile(new URL(`./fixtures/${name}.ts`, import.meta.url)).path,
});

/** Returns the error of a command that must fail, and checks that no memory or process is left. */
export async function failureOf(run: () => Promise<unknown>): Promise<Error> {
  const context = Context.primary();
  const { free } = context.memoryInfo();
  const before = childrenOf(process.pid);
  const error = await run().then(
    () => assert.fail('the command came to an end'),
    (reason: Error) => reason,
  );
  await context.flush();
  assert.equal(context.memoryInfo().free, free);
  assert.deepEqual(childrenOf(process.pid), before);
  return error;
}
