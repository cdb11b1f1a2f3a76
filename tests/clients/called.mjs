// SPDX-License-Identifier: Apache-2.0
// Which public methods of a client's classes a program called: a method that nobody called must be named, with a reason.
import assert from "node:assert/strict";

// `kinds`: classes by name. Methods of prototypes and static ones, also those that they inherit from their own package.
export function watch(kinds) {
  const seen = new Set(), wanted = new Set();
  const put = (holder, name, label) => {
    const found = Object.getOwnPropertyDescriptor(holder, name);
    if (typeof found?.value !== "function" || name === "constructor" || name.startsWith("_") || !found.configurable) return;
    wanted.add(label);
    const inner = found.value;
    Object.defineProperty(holder, name, { ...found, value(...words) {
      seen.add(label);
      return inner.apply(this, words);
    } });
  };
  for (const [kind, type] of Object.entries(kinds)) {
    for (const name of Object.getOwnPropertyNames(type.prototype)) put(type.prototype, name, `${kind}.${name}`);
    for (const name of Object.getOwnPropertyNames(type)) {
      if (!["length", "name", "prototype", "arguments", "caller"].includes(name)) put(type, name, `${kind}.${name}`);
    }
  }
  // `reasons`: why a method is not called, by "Class.method", or "Class.*" for all that are left of a class.
  return (reasons) => {
    const silent = [...wanted].filter((name) => !seen.has(name));
    const unnamed = silent.filter((name) => !(name in reasons) && !(name.split(".")[0] + ".*" in reasons));
    const stale = Object.keys(reasons).filter((name) => !silent.includes(name) &&
      !(name.endsWith(".*") && silent.some((each) => each.startsWith(name.slice(0, -1)))));
    assert.deepEqual(unnamed, [], "neither called nor named with a reason");
    assert.deepEqual(stale, [], "named with a reason, but called, or no method at all");
    console.log("ok", wanted.size, "public methods:", wanted.size - silent.length, "called,", silent.length, "named");
  };
}
