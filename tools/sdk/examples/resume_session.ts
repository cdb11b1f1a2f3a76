// SPDX-License-Identifier: Apache-2.0
// Yesterday's session: a snapshot keeps a warm kernel, and another process goes on with its variables, in milliseconds.
//
// usage: node resume_session.js save NAME      works a while, keeps the machine as snapshot NAME, and leaves
//        node resume_session.js resume NAME    goes on from it, today, tomorrow, as often as you like
//        node resume_session.js                both, each in a process of its own, with times
import { execFileSync } from "node:child_process";
import { Ramet, Sandbox } from "@ramet/sdk";

const WORK = `
import numpy as np
table = np.random.RandomState(1).normal(size=(400, 50))
model = np.linalg.svd(table, full_matrices=False)
opened = open('notes.txt', 'a+')
print('the first of', len(model[1]), 'singular values is', round(float(model[1][0]), 3), file=opened, flush=True)
`;
const GO_ON = `
opened.seek(0)
print(opened.read(), end='')
print('the smallest is', round(float(model[1][-1]), 3), '- computed from what was in memory')
`;

/** Works, keeps it, and leaves nothing running. */
async function save(name: string): Promise<void> {
  const sandbox = await Sandbox.create({ template: "code-interpreter" });
  try {
    await sandbox.runCode(WORK, { check: true });
    const snapshot = await sandbox.snapshot({ name, wait: true });
    console.log(`saved as ${snapshot.name}; the machine stood still for ${snapshot.pause_ms?.toFixed(0)} ms and is gone now`);
  } finally {
    await sandbox.kill();
  }
}

/** Goes on. The kernel, its variables and its open file are there. */
async function resume(name: string): Promise<void> {
  const began = Date.now();
  const sandbox = await Sandbox.create({ fromSnapshot: name });
  try {
    const runs = Date.now();
    const execution = await sandbox.runCode(GO_ON, { check: true });
    process.stdout.write(execution.stdout);
    console.log(`it ran ${runs - began} ms after the call, and had answered after ${Date.now() - began} ms`);
  } finally {
    await sandbox.kill();
  }
}

const [step, name] = process.argv.slice(2);
if (step === undefined) {
  const made = `session-${Date.now().toString(36)}`;
  for (const one of ["save", "resume"]) execFileSync(process.execPath, [process.argv[1]!, one, made], { stdio: "inherit" });
  await new Ramet().deleteSnapshot(made);
} else if ((step === "save" || step === "resume") && name !== undefined) {
  await (step === "save" ? save(name) : resume(name));
} else {
  console.error("usage: resume_session [save NAME | resume NAME]");
  process.exitCode = 2;
}
