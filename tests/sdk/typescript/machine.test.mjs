// SPDX-License-Identifier: Apache-2.0
// Every method once against a real daemon, with machines that go on from one that was booted; what each call reached is
// compared with the daemon's own table of routes.
import assert from "node:assert/strict";
import { createHash, randomBytes } from "node:crypto";
import { execFileSync } from "node:child_process";
import fs from "node:fs/promises";
import http from "node:http";
import { after, before, test } from "node:test";
import { CommandError, Ramet, RametError, Sandbox } from "@ramet/sdk";
import { all, failure } from "./helpers.mjs";

// Routes that no method reaches, and why.
const WITHOUT_METHOD = new Map([]);

const ROUTES = execFileSync(`${process.env.RAMET_BIN}/rametd`, ["--routes"], { encoding: "utf8" }).trim().split("\n");
const reached = new Set();
const note = (method, url) => reached.add(`${method} ${new URL(url).pathname}`);
const noting = (input, init) => {
  note(init?.method ?? "GET", input);
  return fetch(input, init);
};
const ramet = new Ramet({ fetch: noting });
// What fetch cannot do goes around it.
for (const [method, path] of [["openPty", "exec/pty"], ["openPort", "ports/1"]]) {
  const plain = ramet[method].bind(ramet);
  ramet[method] = (name, ...more) => {
    note("GET", `${ramet.transport.url}/v1/sandboxes/${name}/${path}`);
    return plain(name, ...more);
  };
}
const folder = process.env.RAMET_TEST_FOLDER;
const text = (bytes) => new TextDecoder().decode(bytes);
const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
let box;

before(async () => (box = await Sandbox.create({ name: "box", template: "code-interpreter", labels: { a: "1" }, client: ramet })));

test("the service", async () => {
  assert.equal((await ramet.health()).status, "ok");
  assert.equal((await ramet.version()).api, "v1");
  assert.match((await ramet.openapi()).openapi, /^3\.1/);
  assert.ok((await ramet.store()).physical_bytes > 0);
  assert.ok((await ramet.memory()).machines >= 1);
  assert.equal((await ramet.pool()).size, 0);
  assert.equal((await ramet.me()).owner, false);
});

test("commands, with their output, time-outs and errors", async () => {
  const quick = await ramet.exec("box", { command: "echo out; echo err >&2; exit 3", timeout_secs: 60 });
  assert.deepEqual([quick.stdout, quick.stderr, quick.exit_code, quick.timed_out], ["out\n", "err\n", 3, false]);
  const slow = await ramet.exec("box", "echo out; echo err >&2; exit 3");
  assert.deepEqual({ ...slow, duration_ms: 0 }, { ...quick, duration_ms: 0 });
  assert.equal((await box.exec("cat; echo \"$A\"; pwd", { stdin: new TextEncoder().encode("in "), env: { A: "1  2" }, cwd: "/usr", user: "root" })).stdout, "in 1  2\n/usr\n");
  const thrown = await failure(box.exec("echo why >&2; exit 4", { check: true }));
  assert.ok(thrown instanceof CommandError);
  assert.equal(thrown.result.exitCode, 4);
  assert.match(thrown.message, /ended with 4: why/);
  const seen = [];
  await box.commands.run("echo a; echo b >&2", { onStdout: (t) => seen.push("o" + t), onStderr: (t) => seen.push("e" + t) });
  assert.deepEqual(seen.sort(), ["eb\n", "oa\n"]);
  const bad = await failure(ramet.exec("box", { command: "true", timeout_secs: 5, colour: 1 }));
  assert.deepEqual([bad.status, bad.code], [400, "validation.invalid"]);
  assert.match(bad.message, /colour/);
  assert.match(bad.requestId, /^req_/);
  assert.equal((await failure(all(ramet.execStream("nobody", "true")))).code, "sandbox.not_found");
});

test("A03 a command beyond its time is ended with what it said; a client that leaves ends its command", async () => {
  let late;
  for (const timeout_secs of [0.5, 4, 30, 120]) { // a slow machine needs longer to begin
    late = await ramet.exec("box", { command: "echo begun; sleep 1234", timeout_secs });
    if (late.stdout !== "") break;
  }
  assert.deepEqual([late.timed_out, late.stdout], [true, "begun\n"]);
  const controller = new AbortController();
  const running = ramet.exec("box", "echo $$ > /tmp/pid; exec sleep 4321", { signal: controller.signal });
  running.catch(() => undefined);
  for await (const event of ramet.execStream("box", "until [ -s /tmp/pid ]; do sleep 0.05; done; echo there")) {
    if (event.event === "stdout") break;
  }
  controller.abort();
  assert.equal((await failure(running)).name, "AbortError");
  await ramet.exec("box", { command: "while kill -0 $(cat /tmp/pid) 2>/dev/null; do sleep 0.05; done", timeout_secs: 120 });
});

test("A03 five quiet minutes are no reason to hang up", { skip: !process.env.RAMET_TEST_LONG && "only with RAMET_TEST_LONG=1" }, async () => {
  assert.deepEqual((({ exit_code, stdout }) => [exit_code, stdout])(await ramet.exec("box", "sleep 400; echo done")), [0, "done\n"]);
});

test("X01 both streams flooded at once end with the true status, in bounds", async () => {
  // What is beyond 16 MiB of a stream is cut: unit.test.mjs tries it, and this where time does not matter.
  const mebibytes = process.env.RAMET_TEST_LONG ? 300 : 3;
  const flood = `(head -c ${mebibytes}M /dev/zero | tr '\\0' e >&2) & head -c ${mebibytes}M /dev/zero | tr '\\0' o; wait; exit 3`;
  const result = await ramet.exec("box", flood);
  const kept = Math.min(mebibytes, 16) << 20;
  assert.deepEqual([result.exit_code, result.truncated, result.stdout.length, result.stderr.length], [3, mebibytes > 16, kept, kept]);
  let counted = 0;
  for await (const event of ramet.execStream("box", "head -c 3000000 /dev/zero | tr '\\0' x")) {
    if (event.event === "stdout") counted += event.data.text.length;
  }
  assert.equal(counted, 3000000);
});

test("X02 bytes that are no text come back as they were", async () => {
  const every = Uint8Array.from({ length: 65536 }, (_, i) => (i * 7 + (i >> 8)) & 255);
  const stdin_base64 = Buffer.from(every).toString("base64");
  for (const timeout_secs of [60, undefined]) {
    const result = await ramet.exec("box", { command: "cat; cat /etc/hostname >&2", stdin_base64, encoding: "base64", timeout_secs });
    assert.equal(sha256(Buffer.from(result.stdout_base64, "base64")), sha256(every));
    assert.ok(result.stdout.includes("\ufffd"));
  }
  await ramet.writeFile("box", every, "deep/er/bytes.bin", { mode: 0o600 });
  assert.equal(sha256(await ramet.readFile("box", "deep/er/bytes.bin")), sha256(every));
  assert.deepEqual((await ramet.exec("box", { command: "sha256sum < deep/er/bytes.bin", timeout_secs: 60 })).stdout.slice(0, 64), sha256(every));
});

test("X03 characters cut in two stay whole in streams, results, jobs and terminals", async () => {
  const drip = "for b in '\\xe2' '\\x82' '\\xac' '\\xf0' '\\x9f' '\\x98' '\\x80'; do printf $b; sleep 0.02; done; printf '\\xe2'";
  const pieces = await all(ramet.execStream("box", drip));
  assert.equal(pieces.map((event) => event.data.text ?? "").join(""), "€😀\ufffd");
  const job = await ramet.startJob("box", { command: drip, name: "drip" });
  const logs = await all(ramet.jobLogs("box", job.id));
  assert.equal(logs.map((event) => (event.event === "stdout" ? event.data.text : "")).join(""), "€😀\ufffd");
  assert.equal(logs.at(-1).event, "end");
  const shown = [];
  for await (const piece of await ramet.openPty("box", { command: drip })) shown.push(piece);
  assert.equal(Buffer.concat(shown).toString(), "€😀\ufffd");
});

test("X04 lone surrogates in code are shown escaped; what UTF-8 cannot carry is refused, and the next run works", async () => {
  const run = (code) => ramet.runCode("box", "python", { code, timeout_secs: 60 });
  assert.equal((await run("print('\\ud800')")).error.name, "UnicodeEncodeError");
  assert.equal((await run("'\\udead'")).text, "'\\udead'");
  assert.equal((await run("raise Exception('\\ud8ff')")).error.value, "\\ud8ff");
  const refused = await failure(run("'\ud800'"));
  assert.deepEqual([refused.status, refused.code], [400, "validation.invalid"]);
  assert.equal((await run("1 + 1")).text, "2");
});

test("A02 a job's log goes on from where it was, and a stranger's place is a gap or an error, not silence", async () => {
  const job = await ramet.startJob("box", "for i in 1 2 3; do echo line $i; done; read wait < /tmp/fifo-none || sleep 0.1; echo last");
  await ramet.waitJob("box", job.id, { waitSecs: 60 });
  const whole = await all(ramet.jobLogs("box", job.name ?? job.id, { follow: false }));
  const first = whole.find((event) => event.event === "stdout");
  const rest = await all(ramet.jobLogs("box", job.id, {}, { lastEventId: first.id }));
  const said = (events) => events.filter((event) => event.event === "stdout").map((event) => event.data.text).join("");
  assert.equal(said(whole), "line 1\nline 2\nline 3\nlast\n");
  assert.equal(first.data.text + said(rest), said(whole));
  assert.equal((await ramet.getJob("box", job.id)).exit_code, 0);
  assert.ok((await ramet.listJobs("box")).some((one) => one.id === job.id));
  await ramet.deleteJob("box", job.id);
  assert.equal((await failure(ramet.getJob("box", job.id))).status, 404);
  const server = await box.startJob("exec sleep 1000", { name: "server" });
  await ramet.signalJob("box", "server", { signal: "TERM", whole: true });
  assert.equal((await ramet.waitJob("box", server.id)).signal, 15);
  const again = await box.startJob("exec sleep 1000");
  assert.equal((await failure(ramet.deleteJob("box", again.id))).status, 409);
  await ramet.deleteJob("box", again.id, { kill: true });
});

test("files in every form that can be written and read", async () => {
  const bytes = new Uint8Array(randomBytes(3 << 20));
  const forms = { string: "text ü", bytes, buffer: bytes.buffer.slice(0, 100), blob: new Blob([bytes]), stream: new Blob([bytes]).stream() };
  for (const [name, data] of Object.entries(forms)) await box.files.write(`forms/${name}`, data);
  assert.equal(await box.files.readText("forms/string"), "text ü");
  for (const name of ["bytes", "blob", "stream"]) assert.equal(sha256(await box.files.read(`forms/${name}`)), sha256(bytes), name);
  assert.equal((await box.files.stat("forms/buffer")).size, 100);
  const part = await new Response(await box.files.readStream("forms/bytes", { start: 1000, end: 2000 })).arrayBuffer();
  assert.deepEqual(new Uint8Array(part), bytes.subarray(1000, 2000));
  assert.equal((await failure(ramet.readFileStream("box", "forms/string", { start: 100 }))).status, 416);
  // A local file, larger than what is held at once, there and back.
  const large = `${folder}/large`;
  await fs.writeFile(large, randomBytes(5 << 20));
  await box.files.upload(large, "large", { mode: "755" });
  await box.files.download("large", `${large}.back`);
  assert.equal(sha256(await fs.readFile(`${large}.back`)), sha256(await fs.readFile(large)));
  assert.equal((await box.files.stat("large")).mode.slice(-3), "755");
  assert.equal((await failure(box.files.download("none", `${folder}/none`))).status, 404);
  assert.deepEqual((await fs.readdir(folder)).filter((name) => name.startsWith("none")), []);
  await box.files.makeDir("forms/sub");
  await box.files.move("forms/string", "forms/sub/moved");
  assert.deepEqual((await box.files.list("forms/sub")).map((entry) => entry.path), ["forms/sub/moved"]);
  const walked = [];
  for await (const entry of box.files.walk("forms")) walked.push(entry.name);
  assert.ok(walked.includes("moved") && walked.includes("blob"));
  assert.equal(await box.files.exists("forms/none"), false);
  await box.files.remove("forms", { recursive: true });
  assert.equal(await box.files.exists("forms"), false);
  const watch = box.files.watch(".");
  for await (const event of watch) {
    if (event.event === "ready") await box.files.write("watched", "x");
    else if ((event.data.path ?? event.data.to ?? "").endsWith("watched") || event.data.to?.endsWith("watched")) break;
  }
});

test("a terminal: what is typed, its size, its end", async () => {
  const pty = await ramet.openPty("box", { rows: 30, columns: 100, command: "stty size; read x; stty size; echo got $x; exit 7", cwd: "/" });
  let shown = "";
  let typed = false;
  for await (const piece of pty) {
    shown += text(piece);
    if (!typed && shown.includes("30 100")) {
      typed = true;
      await pty.resize(40, 120);
      await pty.write("wörd\r");
    }
  }
  assert.match(shown, /40 120[^]*got wörd/);
  assert.equal((await pty.ended).exit_code, 7);
  await assert.rejects(pty.write("x"), { code: "pty.ended" });
  // A large paste, and leaving hangs it up.
  const cat = await box.openPty({ command: "stty raw -echo; echo ready; exec sha256sum /dev/stdin" });
  for await (const piece of cat) if (text(piece).includes("ready")) break;
  await assert.rejects(cat.ended, { code: "pty.ended" });
  const refused = [];
  const odd = await ramet.openPty("box", { command: "cat", onError: (error) => refused.push(error.message) });
  await odd.resize(0, 10000);
  while (refused.length === 0) await new Promise((resolve) => setImmediate(resolve));
  assert.match(refused[0], /1 to 4096/);
  odd.close();
  assert.equal((await failure(ramet.openPty("nobody"))).status, 404);
  assert.equal((await failure(new Ramet({ key: "e2b_0" }).openPty("box"))).status, 401);
});

test("a terminal's key may be a subprotocol, as browsers need it", async () => {
  const answer = (protocols, more = {}) => new Promise((resolve, reject) => {
    const headers = { connection: "Upgrade", upgrade: "websocket", "sec-websocket-version": "13",
      "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==", "sec-websocket-protocol": protocols, ...more };
    const request = http.get(`${ramet.transport.url}/v1/sandboxes/box/exec/pty?command=cat`, { headers, agent: false });
    request.on("upgrade", (response, socket) => resolve([response.statusCode, response.headers["sec-websocket-protocol"], socket.destroy()]));
    request.on("response", (response) => resolve([response.statusCode, response.headers["sec-websocket-protocol"], response.resume()]));
    request.on("error", reject);
  });
  const key = `ramet.key.${process.env.RAMET_API_KEY}`;
  assert.deepEqual((await answer(`ramet.pty, ${key}`)).slice(0, 2), [101, "ramet.pty"]);
  assert.deepEqual((await answer(key)).slice(0, 2), [101, undefined]);
  for (const wrong of ["ramet.pty", "ramet.pty, ramet.key.", "ramet.key.e2b_00", `${key}0`, `${key}, ramet.key.e2b_00`]) {
    assert.deepEqual((await answer(wrong)).slice(0, 2), [401, undefined], wrong);
  }
  assert.equal((await answer(key, { authorization: "Bearer e2b_00" }))[0], 401);
});

test("ports, by a connection and by a URL", async () => {
  await box.files.write("www/index.html", "hello from inside");
  await box.startJob("exec python3 -m http.server 8123 --bind 127.0.0.1 --directory www", { name: "www" });
  await box.exec("until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8123))' 2>/dev/null; do sleep 0.1; done", { timeoutSecs: 120 });
  assert.ok((await ramet.listPorts("box")).some((one) => one.port === 8123));
  const port = await ramet.openPort("box", 8123);
  const writer = port.writable.getWriter();
  await writer.write(new TextEncoder().encode("GET / HTTP/1.0\r\n\r\n"));
  assert.match(await new Response(port.readable).text(), /200 OK[^]*hello from inside/);
  port.close();
  const url = await ramet.createUrl("box", { host_port: 8123, ttl_secs: 600 });
  assert.equal(await (await fetch(url.url)).text(), "hello from inside");
  assert.deepEqual((await ramet.listUrls("box")).map((one) => one.id), [url.id]);
  await ramet.deleteUrl("box", url.id);
  assert.equal((await fetch(url.url)).status, 404);
  assert.equal((await failure(ramet.openPort("box", 1))).status, 502);
  await ramet.deleteJob("box", "www", { kill: true });
});

test("code keeps its variables; X05 X06 X08 what will not end, asks or dies says so; X13 big results arrive or are cut with words", async () => {
  const ctx = await box.createCodeContext();
  assert.equal((await ctx.runCode("x = 20\nprint('said')\nx + 1")).text, "21");
  const seen = [];
  const run = await ctx.runCode("import sys\nprint(x)\nprint('e', file=sys.stderr)\nfrom IPython.display import HTML\ndisplay(HTML('<b>h</b>'))\n{'a': x}",
    { onStdout: (t) => seen.push(t), onStderr: (t) => seen.push(t), onResult: (result) => seen.push(result.html ?? result.text) });
  assert.deepEqual([run.stdout, run.stderr, run.text, run.html, run.error], ["20\n", "e\n", "{'a': 20}", "<b>h</b>", undefined]);
  assert.ok(["20\n", "e\n", "<b>h</b>", "{'a': 20}"].every((piece) => seen.includes(piece)), seen);
  const failed = await ctx.runCode("def f():\n  return 1 / 0\nf()", { timeoutSecs: 60 });
  assert.match(failed.error, /ZeroDivisionError: division by zero/);
  assert.equal(failed.errorInfo.name, "ZeroDivisionError");
  // In the context that was kept warm: to import all of it anew takes long where machines are emulated.
  const chart = await box.runCode("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()", { timeoutSecs: 100 });
  assert.equal(text(chart.results[0].pngBytes().subarray(1, 4)), "PNG");
  assert.equal(chart.chart, chart.png);
  // X13
  const long = await ctx.runCode("print('x' * 3_000_000); from IPython.display import display, HTML; display(HTML('h' * 2_000_000))");
  assert.deepEqual([long.stdout.length, long.html.length], [3_000_001, 2_000_000]);
  const huge = await ctx.runCode("'v' * 20_000_000", { timeoutSecs: 120 });
  assert.ok(huge.truncated && huge.text.length < 9_000_000 && huge.error === undefined);
  const bars = await ctx.runCode("for i in range(2000): print(f'\\r{i}', end='')\nh = display('old', display_id='d'); h.update('new')");
  assert.ok(bars.stdout.endsWith("\r1999") && bars.stdout.includes("\r7\r8"));
  assert.equal(bars.results.at(-1).text, "'new'");
  // Interrupts, and an abort.
  const events = ctx.runCodeStream("import time\nprint('begun')\ntime.sleep(1000)");
  const kinds = [];
  for await (const event of events) {
    kinds.push(event.event);
    if (event.event === "stdout") assert.equal(await ctx.interrupt(), true);
  }
  assert.deepEqual([kinds.at(-1), kinds.includes("error")], ["done", true]);
  let kept;
  for (let i = 0; i < 5 && kept !== "20"; i++) { // where everything is slow enough, the time to be interrupted in is too short
    await ctx.runCode("import time\nx = 20");
    const controller = new AbortController();
    const aborted = ctx.runCode("print('begun')\ntime.sleep(1000)", { signal: controller.signal, onStdout: () => controller.abort() });
    assert.equal((await failure(aborted)).name, "AbortError");
    kept = (await ctx.runCode("x", { timeoutSecs: 60 })).text;
  }
  assert.equal(kept, "20");
  const late = await ctx.runCode("time.sleep(1000)", { timeoutSecs: 0.5 });
  assert.equal(late.timedOut, true);
  const asked = await ctx.runCode("input('name? ')", { timeoutSecs: 600 });
  assert.deepEqual([asked.errorInfo.name, asked.timedOut], ["EOFError", false]);
  assert.ok((await ramet.listContexts("box")).some((one) => one.id === ctx.id));
  assert.equal((await box.getCodeContext(ctx.id)).language, "python");
  await ctx.close();
  await ctx.close();
  const shell = await box.createCodeContext("bash");
  assert.equal((await shell.runCode("a=5; echo $a; false", { timeoutSecs: 60 })).exitCode, 1);
  await shell.restart();
  assert.equal((await shell.runCode("echo [$a]", { timeoutSecs: 60 })).stdout, "[]\n");
  const died = await shell.runCode("a=6; exit 5", { timeoutSecs: 60 });
  assert.deepEqual([died.errorInfo.name, died.exitCode], ["ContextDied", 5]);
  assert.match(died.stateLost, /status 5/);
  const anew = await shell.runCode("echo [$a]", { timeoutSecs: 60 });
  assert.equal(anew.stdout, "[]\n");
  assert.match(anew.stateLost, /began with nothing/);
});

test("A01 the same key makes one thing", async () => {
  const options = { idempotencyKey: "once-for-this-test" };
  const made = await Promise.allSettled(Array.from({ length: 3 }, () => ramet.createVolume({ name: "once", size_bytes: 1 << 20 }, options)));
  const ids = new Set(made.map((one) => one.value?.id));
  assert.equal(ids.size, 1, JSON.stringify(made));
  const other = await failure(ramet.createVolume({ name: "twice", size_bytes: 1 << 20 }, options));
  assert.ok(other.status >= 400 && other.status < 500 && !other.retryable, other.message);
  await ramet.deleteVolume("once");
});

test("stop, start, pause, resume, snapshots, forks and promote", async () => {
  const waiting = ramet.waitUntil("box", "stopped");
  await box.runCode("kept = 'alive'", { timeoutSecs: 60 });
  await box.stop();
  assert.equal((await waiting).state, "stopped");
  await box.start();
  await box.waitUntil("running");
  assert.equal((await box.runCode("kept", { timeoutSecs: 60 })).text, "'alive'");
  await box.pause();
  assert.equal((await failure(box.exec("true", { timeoutSecs: 5 }))).status, 409);
  await box.resume();
  const taken = await box.snapshot({ name: "instant" });
  assert.equal((await ramet.getSnapshot("instant", { wait: true })).state, "ready");
  assert.ok((await ramet.listSnapshots()).some((one) => one.id === taken.id));
  const [left, right] = await box.fork(2, { labels: { side: "both" } });
  assert.equal((await left.runCode("kept", { timeoutSecs: 60 })).text, "'alive'");
  assert.equal((await ramet.listSandboxes({ label: "side=both" })).length, 2);
  assert.equal((await Sandbox.list({ state: "running" }, ramet)).length, 3);
  const kept = await right.promote({ name: "kept" });
  assert.deepEqual([kept.winner.name, kept.deleted.length], ["kept", 1]);
  assert.equal((await failure(left.refresh())).status, 404);
  await right.refresh();
  assert.equal(right.name, "kept");
  await right.restore("instant");
  await right.setTtl(1000);
  assert.equal(right.info.ttl_secs, 1000);
  const gone = ramet.waitUntil("kept", "deleted");
  await right.kill();
  await right.kill();
  await gone;
  const labelled = await ramet.updateSnapshot("instant", { name: "that-instant", labels: { kept: "yes" } });
  assert.deepEqual([labelled.name, labelled.labels], ["that-instant", { kept: "yes" }]);
  await ramet.deleteSnapshot("that-instant");
});

test("events are heard as they happen, and found afterwards", async () => {
  const controller = new AbortController();
  const stream = await ramet.events({ signal: controller.signal }).open();
  const own = await box.events().open();
  await ramet.pauseSandbox("box");
  await ramet.resumeSandbox("box");
  const states = [];
  let id;
  for await (const event of stream) {
    if (event.event === "state" && event.data.sandbox === "box") states.push(event.data.state);
    id = id ?? event.id;
    if (states.length === 2) break;
  }
  assert.deepEqual(states, ["paused", "running"]);
  for await (const event of own) if (event.data.state === "running") break;
  // From the first on: exactly the second, whoever heard it before.
  for await (const event of ramet.events({ lastEventId: id })) {
    assert.notEqual(event.event, "gap");
    assert.equal(event.data.state, "running");
    break;
  }
  assert.ok((await ramet.pastSandboxEvents("box")).length > 3 && (await ramet.pastEvents()).length > 3);
  assert.equal(typeof (await box.logs({ tailBytes: 100 })), "string");
  assert.equal((await box.metrics()).name, "box");
  assert.match(await ramet.metrics(), /^# /m);
});

test("volumes, archives, transfers, templates", async () => {
  const disk = new Uint8Array(1 << 20).fill(7);
  await ramet.writeVolume("disk", disk);
  assert.equal(sha256(Buffer.from(await new Response(await ramet.readVolume("disk")).arrayBuffer())), sha256(disk));
  await ramet.snapshotVolume("disk", { name: "disk-1" });
  await ramet.forkVolume("disk-1", "disk-2");
  assert.equal((await ramet.updateVolume("disk-2", { size_bytes: 2 << 20 })).size_bytes, 2 << 20);
  assert.equal((await ramet.getVolume("disk-2")).name, "disk-2");
  assert.equal((await ramet.diffVolume("disk", "disk-1")).changed_bytes, 0);
  assert.ok((await ramet.mapVolume("disk")).data_bytes > 0);
  assert.ok((await ramet.listVolumes({ all: true })).length >= 3);
  const archive = await new Response(await ramet.exportArchive(["disk-1"])).blob();
  assert.equal((await ramet.importArchive(archive, { prefix: "copy-" })).snapshots[0].name, "copy-disk-1");
  const out = await ramet.openExport({ name: "disk" });
  assert.ok(out.size_bytes === 1 << 20 && out.socket.startsWith("/"));
  out.close();
  const into = await ramet.openImport({ name: "fresh", size_bytes: 1 << 20 });
  assert.equal((await ramet.commitImport(into.import)).name, "fresh");
  into.close();
  const given = await ramet.openImport({ name: "given-up", size_bytes: 1 << 20 });
  await ramet.cancelImport(given.import);
  given.close();
  for (const name of ["disk", "disk-2", "fresh"]) await ramet.deleteVolume(name);
  for (const name of ["disk-1", "copy-disk-1"]) await ramet.deleteSnapshot(name);
  await ramet.storeSeal();
  assert.equal((await ramet.storeCheck()).damages, 0);
  assert.equal((await ramet.storeScrub()).damages, 0);
  assert.ok((await ramet.storeGc()).live_blocks > 0);
  const lineage = await ramet.storeLineage();
  assert.ok(lineage.nodes.some((node) => node.name === "code-interpreter"));
  // A template of a running machine, its log, and one that fails with words.
  const build = await ramet.createTemplate({ name: "saved", sandbox: "box", warm: "none" });
  assert.equal((await ramet.waitBuild(build.id)).state, "ready");
  assert.ok((await ramet.listTemplates()).some((one) => one.name === "saved"));
  assert.equal((await ramet.getTemplate("saved")).template, true);
  assert.equal(typeof (await ramet.templateLog("saved")), "string");
  assert.ok((await ramet.listBuilds()).some((one) => one.id === build.id));
  await ramet.deleteTemplate("saved");
  const upload = await ramet.uploadTemplate("no archive");
  const broken = await ramet.createTemplate({ name: "broken", tar: upload.upload });
  const why = await failure(ramet.waitBuild(broken.id));
  assert.match(why.message, /the build of broken failed: /);
  await ramet.cancelBuild(broken.id).catch((error) => assert.equal(error.status, 409));
  await ramet.deleteUpload((await ramet.uploadTemplate("unused")).upload);
});

test("keys, and the server's environment", async () => {
  const made = await ramet.createKey({ name: "short", preset: "ci", expires_in_secs: 600 });
  const ci = new Ramet({ key: made.key, maxRetries: 0 });
  assert.deepEqual(await ci.listSandboxes(), [], "a ci key sees what it made");
  assert.equal((await failure(ci.getSandbox("box"))).status, 404);
  assert.equal((await failure(ci.createKey({ name: "stronger", preset: "admin" }))).status, 403);
  assert.equal((await ramet.getKey(made.id)).name, "short");
  await ramet.deleteKey(made.id);
  const thrown = await failure(ci.listSandboxes());
  assert.deepEqual([thrown.status, thrown.code], [401, "auth.invalid"]);
  assert.ok((await ramet.listKeys()).every((key) => key.id !== made.id));
  await ramet.setEnvironment({ SECRET: "s" });
  await ramet.updateEnvironment({ OTHER: "o", SECRET: null });
  assert.deepEqual(await ramet.getEnvironment(), { OTHER: "o" });
  await ramet.setEnvironment({});
});

test("explore keeps the best of many ways", async () => {
  await box.runCode("base = 10", { timeoutSecs: 60 });
  const tried = await box.explore(
    [
      { label: "twice", run: (branch) => branch.runCode("base * 2", { timeoutSecs: 60 }) },
      { label: "thrice", run: (branch) => branch.runCode("base * 3", { timeoutSecs: 60 }) },
      { label: "throws", run: () => Promise.reject(new RametError("no way", { code: "mine" })) },
      "exit 1",
    ],
    { score: (outcome) => Number(outcome.value?.text), name: "best" },
  );
  assert.deepEqual([tried.best.label, tried.winner.name, tried.best.score], ["thrice", "best", 30]);
  assert.deepEqual(tried.outcomes.map((outcome) => outcome.ok), [true, true, false, false]);
  assert.equal(tried.outcomes[2].error.code, "mine");
  assert.deepEqual((await ramet.listSandboxes()).map((one) => one.name).sort(), ["best", "box"]);
  await tried.winner.kill();
  const none = await box.explore(["false", "exit 2"]);
  assert.equal(none.winner, undefined);
  const thrown = await failure(box.explore([{ run: (branch) => branch.exec("sleep 1000") }], { signal: AbortSignal.timeout(1500) }));
  assert.equal(thrown.name, "TimeoutError");
  assert.deepEqual((await ramet.listSandboxes()).map((one) => one.name), ["box"]);
});

test("every route of the daemon is reached by a method", () => {
  assert.ok(ROUTES.length > 80);
  const missing = [];
  for (const line of ROUTES) {
    const [method, pattern] = line.split(" ");
    const wanted = new RegExp(`^${method} ${pattern.replace(/\{[^}]*\}/g, "[^/]+")}$`);
    const route = `${method} ${pattern}`;
    if (pattern.includes("/{part}")) continue; // NAME/disk and NAME/memory: the same methods, as names with a slash
    const found = [...reached].some((one) => wanted.test(one));
    if (!found && !WITHOUT_METHOD.has(route)) missing.push(route);
    if (found) assert.ok(!WITHOUT_METHOD.has(route), `${route} is reached: take it off the list`);
  }
  assert.deepEqual(missing, []);
});

after(() => box.kill());
