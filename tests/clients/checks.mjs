// SPDX-License-Identifier: Apache-2.0
// How calls.mjs of each family says what it tries.
import assert from "node:assert/strict";

/** How many were good. */
export let tried = 0;

function good(what) {
  tried += 1;
  console.log("ok", what);
}

export function check(what, seen, wanted) {
  assert.deepEqual(seen, wanted, what);
  good(what);
}

/** The call must fail with an error of exactly this class (or of one with this name) that has these words. */
export async function raises(what, kind, words, call) {
  let seen;
  try {
    seen = await call();
  } catch (error) {
    assert.equal(typeof kind === "string" ? error.constructor.name : error.constructor, kind, `${what}: ${error.stack}`);
    assert.ok(error.message.includes(words), `${what}: ${error.message}`);
    good(what);
    return error;
  }
  assert.fail(`${what}: no error but ${JSON.stringify(seen)}`);
}
