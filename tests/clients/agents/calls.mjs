// SPDX-License-Identifier: Apache-2.0
// OpenAI's Agents SDK for JavaScript (@openai/agents) with the E2B client of @openai/agents-extensions, on Ramet's machines: a
// SandboxAgent runs a command beside a file of its manifest, as its model says (a scripted one, OPENAI_BASE_URL).
import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.argv[2] + "/");
const { run } = require("@openai/agents");
const { Manifest, SandboxAgent } = require("@openai/agents/sandbox");
const { E2BSandboxClient } = require("@openai/agents-extensions/sandbox/e2b");

const client = new E2BSandboxClient({ template: "base", timeout: 1500, metadata: { who: "agents" }, env: { WHO: "agent" } });
const agent = new SandboxAgent({
  name: "Reader", instructions: "Read the notes.",
  defaultManifest: new Manifest({ entries: { "notes.txt": { type: "file", content: "seven\n" } } }),
});
const result = await run(agent, "What do the notes say?", { sandbox: { client } });
assert.match(result.finalOutput, /^it says [^]*seven[^]*agent/);
console.log("ok a turn with a tool");
process.exit(0);
