// SPDX-License-Identifier: Apache-2.0
// What the tests share.
import assert from "node:assert/strict";

/** What it was rejected with. */
export async function failure(promise) {
  try {
    await promise;
  } catch (thrown) {
    return thrown;
  }
  assert.fail("it did not fail");
}

/** All that a stream gives. */
export async function all(stream) {
  const seen = [];
  for await (const one of stream) seen.push(one);
  return seen;
}
