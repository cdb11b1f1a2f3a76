// SPDX-License-Identifier: Apache-2.0
// The examples as their users run them: programs against the package, the published @openai/agents, real sandboxes, and a model
// that says what a script tells it to (tests/sdk/model_server.py).
import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import fs from "node:fs/promises";
import { after, before, test } from "node:test";
import { promisify } from "node:util";
import zlib from "node:zlib";
import { Ramet } from "@ramet/sdk";

const folder = process.env.RAMET_TEST_FOLDER;
const ramet = new Ramet();
let model;
let baseUrl;

before(async () => {
  model = spawn("python3", [process.env.RAMET_MODEL_SERVER], { stdio: ["pipe", "pipe", "inherit"] });
  // The pipe stays open: who writes the rest of the line must not find it broken.
  let said = "";
  model.stdout.setEncoding("utf8").on("data", (piece) => (said += piece));
  while (!said.includes("\n")) await once(model.stdout, "data");
  baseUrl = said.trim();
});
after(() => model.stdin.end());

const origin = () => new URL(baseUrl).origin;
const play = (script) => fetch(`${origin()}/script`, { method: "POST", body: JSON.stringify(script) }).then((r) => assert.equal(r.status, 200));
const asked = async () => (await fetch(`${origin()}/requests`)).json();

/** Runs an example to its end; what it printed. */
async function run(example, ...words) {
  const env = { ...process.env, OPENAI_BASE_URL: baseUrl, OPENAI_API_KEY: "none", OPENAI_AGENTS_DISABLE_TRACING: "1" };
  const done = await promisify(execFile)(process.execPath, [`examples/${example}.js`, ...words], { env, maxBuffer: 1 << 26 });
  return done.stdout;
}

const outputs = (requests) =>
  requests.at(-1).body.input.filter((item) => item.type === "function_call_output")
    .map((item) => (typeof item.output === "string" ? item.output : item.output.text ?? item.output.map((part) => part.text).join("")));

/** A picture's size and its colours, out of the bytes of a PNG (8 bits a channel, not interlaced). */
function decodePng(bytes) {
  assert.deepEqual([...bytes.subarray(0, 8)], [137, 80, 78, 71, 13, 10, 26, 10]);
  const data = [];
  let width, height, kind;
  for (let at = 8; at < bytes.length; ) {
    const size = bytes.readUInt32BE(at);
    const type = bytes.toString("latin1", at + 4, at + 8);
    const body = bytes.subarray(at + 8, at + 8 + size);
    if (type === "IHDR") [width, height, kind] = [body.readUInt32BE(0), body.readUInt32BE(4), body[9]];
    if (type === "IDAT") data.push(body);
    at += size + 12;
  }
  const channels = { 2: 3, 6: 4 }[kind];
  const raw = zlib.inflateSync(Buffer.concat(data));
  const stride = width * channels;
  assert.equal(raw.length, height * (stride + 1));
  const rows = Buffer.alloc(height * stride);
  const paeth = (a, b, c) => {
    const [pa, pb, pc] = [Math.abs(b - c), Math.abs(a - c), Math.abs(a + b - 2 * c)];
    return pa <= pb && pa <= pc ? a : pb <= pc ? b : c;
  };
  for (let y = 0; y < height; y++) {
    const filter = raw[y * (stride + 1)];
    for (let x = 0; x < stride; x++) {
      const left = x >= channels ? rows[y * stride + x - channels] : 0;
      const up = y > 0 ? rows[(y - 1) * stride + x] : 0;
      const corner = x >= channels && y > 0 ? rows[(y - 1) * stride + x - channels] : 0;
      const guess = [0, left, up, (left + up) >> 1, paeth(left, up, corner)][filter];
      rows[y * stride + x] = raw[y * (stride + 1) + 1 + x] + guess;
    }
  }
  const colours = new Map();
  for (let at = 0; at < rows.length; at += channels) {
    const colour = rows.toString("hex", at, at + 3);
    colours.set(colour, (colours.get(colour) ?? 0) + 1);
  }
  return { width, height, colours };
}

const PRIMES = "found = [n for n in range(2, 72) if all(n % d for d in range(2, n))]\nprint(*found[:20])\n";
const coder = [
  { call: "save", arguments: { path: "src/primes.py", text: "print(prime)\n" } },
  { call: "shell", arguments: { command: "python3 src/primes.py", timeout_secs: 60 } },
  { match: "NameError", then: { call: "save", arguments: { path: "src/primes.py", text: PRIMES } }, else: { say: "no error was shown" } },
  { calls: [{ call: "show", arguments: { path: "src/none.py" } }, { call: "shell", arguments: { command: "echo begun; sleep 300", timeout_secs: 0.5 } }] },
  // A slow machine needs longer to begin.
  { match: "begun", then: { call: "shell", arguments: { command: "true" } }, else: { call: "shell", arguments: { command: "echo begun; sleep 300", timeout_secs: 60 } } },
  { call: "shell", arguments: { command: "python3 src/primes.py", timeout_secs: 60 } },
  { say: "It printed: {output}" },
];

for (const way of ["whole", "streamed"]) {
  test(`a coder agent with a machine for its conversation, ${way}`, async () => {
    await play(coder);
    const said = await run("coder_agent", "--conversation", `chat-${way}`, "--keep", ...(way === "streamed" ? ["--stream"] : []), "Print the first 20 primes.");
    assert.match(said, /It printed: exit code 0\nstdout:\n2 3 5 7 .* 67 71\n/);
    const requests = await asked();
    assert.equal(requests[0].path, "/v1/responses");
    assert.equal(Boolean(requests[0].body.stream), way === "streamed");
    assert.deepEqual(requests[0].body.tools.map((tool) => tool.name), ["shell", "save", "show"]);
    const tools = outputs(requests);
    assert.match(tools[1], /^exit code 1\nstderr:[^]*NameError/);
    assert.match(tools[3], /none\.py/, "the server's sentence about the missing file");
    assert.match(tools[4].includes("begun") ? tools[4] : tools[5], /out of time\nstdout:\nbegun/);
    assert.equal((await ramet.getSandbox(`chat-${way}`)).state, "stopped");
  });
}

test("the conversation goes on in the same machine another day", async () => {
  await play([{ call: "shell", arguments: { command: "wc -l < src/primes.py; hostname", timeout_secs: 60 } }, { say: "{output}" }]);
  assert.match(await run("coder_agent", "--conversation", "chat-whole", "How long is it?"), /exit code 0\nstdout:\n2\nchat-whole/);
  assert.deepEqual((await ramet.listSandboxes()).map((box) => box.name), ["chat-streamed"]);
  await ramet.deleteSandbox("chat-streamed");
});

const FIBONACCI = "import matplotlib.pyplot as plt\nfib = [1, 1]\nwhile len(fib) < 15: fib.append(fib[-1] + fib[-2])\nfib[14]";
const DRAW = "plt.figure(figsize=(6, 4))\nplt.semilogy(range(1, len(fib) + 1), fib, marker='o', color='#d62728')\nplt.show()";
const analyst = (draw) => [
  { call: "python", arguments: { code: FIBONACCI } },
  { call: "python", arguments: { code: "fib.average()" } },
  ...(draw ? [{ match: "AttributeError", then: { call: "python", arguments: { code: DRAW } }, else: { say: "no traceback was shown" } }] : []),
  { say: "The 15th is 610." },
  { call: "python", arguments: { code: "fib[-5:]" } },
  { say: "The last five are {output}." },
];
const QUESTIONS = ["Draw the first 15 Fibonacci numbers on a logarithmic axis.", "And the last five alone?"];

test("an analyst agent with a kernel that keeps its variables; its chart is a picture", async () => {
  await play(analyst(true));
  const chart = `${folder}/chart.png`;
  const said = await run("analyst_agent", "--chart", chart, ...QUESTIONS);
  assert.match(said, /The 15th is 610\.[^]*The last five are \[89, 144, 233, 377, 610\]\.[^]*the chart is in/);
  const tools = outputs(await asked());
  assert.equal(tools[0], "610");
  assert.match(tools[1], /^It failed:\n[^]*AttributeError: 'list' object has no attribute 'average'/);
  assert.match(tools[2], /1 chart\(s\) drawn and kept/);
  const picture = decodePng(await fs.readFile(chart));
  assert.ok(picture.width > 300 && picture.height > 200, `${picture.width} by ${picture.height}`);
  assert.ok(picture.colours.size > 20, "it is not blank");
  assert.ok((picture.colours.get("d62728") ?? 0) > 200, "the line has its colour");
  assert.deepEqual(await ramet.listSandboxes(), []);
});

test("the same agent, streamed", async () => {
  await play(analyst(false));
  const said = await run("analyst_agent", "--stream", ...QUESTIONS);
  assert.match(said, /The 15th is 610\.\nThe last five are \[89, 144, 233, 377, 610\]\.\n/);
  const requests = await asked();
  assert.ok(requests.every((request) => request.body.stream === true));
  assert.match(outputs(requests)[1], /AttributeError/);
  assert.deepEqual(await ramet.listSandboxes(), []);
});

test("explore: eight branches of one machine, the best is kept", async () => {
  const said = await run("explore_branches");
  assert.match(said, /holds 240 points in its kernel; 8 forks of it/);
  const rows = said.split("\n").filter((line) => /^ {2}\S.*\d\.\d{4} {2}#/.test(line));
  assert.equal(rows.length, 8, said);
  assert.match(rows[0], /waves, robust.* <- kept$/);
  const off = rows.map((row) => Number(/(\d\.\d{4})/.exec(row)[1]));
  assert.deepEqual(off, [...off].sort((a, b) => a - b));
  assert.match(said, /was promoted and the others are gone; its kernel still knows: \[/);
  assert.deepEqual(await ramet.listSandboxes(), []);
  console.log(said);
});

test("yesterday's session goes on with its variables and open files", async () => {
  const said = await run("resume_session");
  assert.match(said, /saved as session-\S+; the machine stood still for \d+ ms/);
  assert.match(said, /the first of 50 singular values is \d+\.\d+\nthe smallest is \d+\.\d+ - computed from what was in memory/);
  assert.ok((await ramet.listSnapshots()).every((snapshot) => !snapshot.name.startsWith("session-")));
  const words = await promisify(execFile)(process.execPath, ["examples/resume_session.js", "sing"]).catch((error) => error);
  assert.deepEqual([words.code, words.stderr], [2, "usage: resume_session [save NAME | resume NAME]\n"]);
});

test("the README's programs", async () => {
  assert.equal(await run("readme_0"), "2432902008176640000\n");
  assert.match(await run("readme_1"), /^0 Python 3\.\d+\.\d+\n/);
  assert.deepEqual(await ramet.listSandboxes(), []);
});
