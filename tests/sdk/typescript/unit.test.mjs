// SPDX-License-Identifier: Apache-2.0
// What the client does by itself: events out of any pieces, retries, keys, time-outs, aborts. The server is a made-up one.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Ramet, RametError, Sandbox, SseParser } from "@ramet/sdk";
import { error, event, events, Fake, json, lost, silence } from "./fake.mjs";
import { all, failure } from "./helpers.mjs";

let fake;
const client = (more = {}) => new Ramet({ url: fake.url, key: "e2b_00", ...more });
before(async () => (fake = await Fake.start()));
after(() => fake.stop());

const bytes = (text) => new TextEncoder().encode(text);

// ---- Events ----

const STREAM =
  "\ufeff: a comment\r\nid: 7\r\nevent: one\r\ndata: first\r\ndata:second line\r\n\r\n" +
  "data: lf only \u00e9\u20ac\u{1f600}\n\n" +
  "event: cr\rdata\rdata:  two spaces\r\r" +
  "event: nothing\n\n" + // no data: no event
  "id: a\0b\nid\ndata: {\"a\":1}\nignored: x\nretry: 12\n\n" +
  "data: unfinished\n";
const WANTED = [
  { event: "one", data: "first\nsecond line", id: "7" },
  { event: "message", data: "lf only \u00e9\u20ac\u{1f600}", id: "7" },
  { event: "cr", data: "\n two spaces", id: "7" },
  { event: "message", data: '{"a":1}', id: "" },
];

test("A02 X03 events are the same however the bytes are cut", () => {
  const all = bytes(STREAM);
  for (let size = 1; size <= all.length; size++) {
    const parser = new SseParser();
    const found = [];
    for (let at = 0; at < all.length; at += size) found.push(...parser.push(all.subarray(at, at + size)));
    assert.deepEqual(found, WANTED, `in pieces of ${size}`);
    assert.equal(parser.retryMs, 12);
  }
  for (let cut = 0; cut <= all.length; cut++) {
    const parser = new SseParser();
    assert.deepEqual([...parser.push(all.subarray(0, cut)), ...parser.push(all.subarray(cut))], WANTED, `cut at ${cut}`);
  }
});

test("X13 a line of 64 MiB is one event, in linear time", () => {
  const parser = new SseParser();
  const piece = bytes("x".repeat(65536));
  assert.deepEqual(parser.push(bytes("data: ")), []);
  for (let i = 0; i < 1024; i++) assert.equal(parser.push(piece).length, 0);
  const [found] = parser.push(bytes("\n\n"));
  assert.equal(found.data.length, 64 << 20);
});

test("A02 a log that breaks goes on at exactly the next event", async () => {
  const out = (n) => event("stdout", { text: `line ${n}\r\n`, offset: n }, `${n}`);
  fake.answer(
    events([out(1), out(2), "id: 3\nevent: stdout\nda"], { breakOff: true }), // the third is not whole
    error(503, "capacity.busy", { retryable: true, retry_after_secs: 0.01 }),
    events([out(3), event("gap", { stream: "stdout", from: 3, to: 9 }, "9")], { breakOff: true }),
    events([event("end", { id: "job_1", state: "ended", exit_code: 0 }, "10")]),
  );
  const seen = await all(client().jobLogs("box", "job_1"));
  assert.deepEqual(seen.map((one) => [one.event, one.data.text, one.id]), [
    ["stdout", "line 1\r\n", "1"], ["stdout", "line 2\r\n", "2"], ["stdout", "line 3\r\n", "3"],
    ["gap", undefined, "9"], ["end", undefined, "10"],
  ]);
  assert.deepEqual(fake.requests.map((request) => request.headers["last-event-id"]), [undefined, "2", "2", "9"]);
  assert.equal(new Set(fake.requests.map((request) => request.url)).size, 1);
});

test("A02 a stream that always breaks is given up, and one goes on from another's end", async () => {
  fake.answer(events([], { breakOff: true }));
  const thrown = await failure(all(client({ maxRetries: 2 }).events({ lastEventId: "41" })));
  assert.equal(thrown.code, "client.stream_broken");
  assert.equal(fake.requests.length, 4);
  assert.ok(fake.requests.every((request) => request.headers["last-event-id"] === "41"));
});

test("A02 a command's stream that breaks is an error, and the command is not run again", async () => {
  fake.answer(events([event("stdout", { text: "half" })], { breakOff: true }));
  const seen = [];
  const thrown = await failure((async () => {
    for await (const one of client().execStream("box", "make")) seen.push(one.data.text);
  })());
  assert.deepEqual(seen, ["half"]);
  assert.ok(thrown instanceof RametError);
  assert.equal(thrown.code, "client.stream_broken");
  assert.equal(fake.requests.length, 1);
  fake.answer(events([event("stdout", { text: "half" })])); // it ends, but without the exit
  assert.equal((await failure(client().exec("box", { command: "make" }))).code, "client.stream_broken");
});

test("an error within a stream is thrown with its code", async () => {
  fake.answer(events([event("error", { code: "exec.ended", message: "the sandbox was stopped", request_id: "req_9" })]));
  const thrown = await failure(client().exec("box", "sleep 9"));
  assert.deepEqual([thrown.code, thrown.message, thrown.requestId], ["exec.ended", "the sandbox was stopped", "req_9"]);
});

test("A03 a stream without even comments is given up; one with comments is not", async () => {
  fake.answer((_, response) => response.writeHead(200, { "content-type": "text/event-stream" }).flushHeaders());
  const thrown = await failure(all(client().execStream("box", "sleep 400", { silenceMs: 50 })));
  assert.equal(thrown.code, "client.stream_broken");
  assert.match(thrown.message, /nothing came for 50 ms/);
  await fake.until(() => fake.open.size === 0);
  for (const silenceMs of [300, 3000, 30000]) {
    let left = 20, last = Date.now(), longest = 0; // ms between two comments
    fake.answer((_, response) => {
      response.writeHead(200, { "content-type": "text/event-stream" });
      const timer = setInterval(() => {
        longest = Math.max(longest, Date.now() - last);
        last = Date.now();
        response.write(": quiet\n\n");
        if (--left > 0) return;
        clearInterval(timer);
        response.end(event("exit", { exit_code: 0, timed_out: false, truncated: false, duration_ms: 1 }));
      }, silenceMs / 15);
      response.on("close", () => clearInterval(timer));
    });
    const seen = await all(client().execStream("box", "sleep 400", { silenceMs })).catch((thrown) => thrown);
    longest = Math.max(longest, Date.now() - last);
    // A host that stood still was silent itself: then with more time.
    if (seen instanceof RametError && longest > silenceMs / 2 && silenceMs < 30000) continue;
    assert.equal(seen[0]?.event, "exit", seen);
    break;
  }
});

// ---- Retries ----

test("A01 a create whose answer is lost is sent again with the same key", async () => {
  const made = { id: "sbx_1", name: "box", state: "running" };
  fake.answer(lost, error(503, "capacity.memory", { retryable: true }), json(500, { error: { code: "internal.error", message: "a fault",
    details: { retryable: true } } }), json(201, made));
  assert.equal((await client().createSandboxes({ name: "box" })).id, "sbx_1");
  const keys = new Set(fake.requests.map((request) => request.headers["idempotency-key"]));
  assert.equal(fake.requests.length, 4);
  assert.equal(keys.size, 1);
  assert.match([...keys][0], /^ts-[0-9a-f]{32}$/);
  assert.equal(new Set(fake.requests.map((request) => request.body.toString())).size, 1);
  fake.answer(json(201, made));
  await client().createSandboxes({ name: "box" });
  assert.ok(!keys.has(fake.requests[0].headers["idempotency-key"]), "another call has another key");
  await client().createSandboxes({ name: "box" }, { idempotencyKey: "mine" });
  assert.equal(fake.requests[1].headers["idempotency-key"], "mine");
});

test("A01 everything that makes something carries a key", async () => {
  fake.answer(json(201, { children: [] }));
  const ramet = client();
  await ramet.forkSandbox("box"); await ramet.snapshot("box"); await ramet.startJob("box", "true"); await ramet.createContext("box");
  await ramet.createUrl("box", { host_port: 80 }); await ramet.createKey({ name: "k" }); await ramet.createVolume({ name: "v" });
  await ramet.forkVolume("v", "w"); await ramet.snapshotVolume("v"); await ramet.createTemplate({ name: "t" });
  assert.equal(new Set(fake.requests.map((request) => request.headers["idempotency-key"])).size, 10);
  assert.ok(fake.requests.every((request) => request.headers["idempotency-key"]?.length > 20));
});

test("only what may be done twice is done twice", async () => {
  fake.answer(lost);
  const ramet = client({ maxRetries: 2 });
  const tries = async (promise) => {
    fake.requests = [];
    const thrown = await failure(promise);
    assert.equal(thrown.code, "client.network");
    return fake.requests.length;
  };
  assert.equal(await tries(ramet.exec("box", { command: "x", timeout_secs: 5 })), 1);
  assert.equal(await tries(ramet.exec("box", "x")), 1);
  assert.equal(await tries(ramet.runCode("box", "python", "x")), 1);
  assert.equal(await tries(ramet.startSandbox("box")), 1);
  assert.equal(await tries(ramet.stopSandbox("box")), 3); // one that is stopped already is a success
  assert.equal(await tries(ramet.makeDir("box", "d")), 3);
  assert.equal(await tries(ramet.getSandbox("box")), 3);
  assert.equal(await tries(ramet.writeFile("box", "x", "f")), 3);
  assert.equal(await tries(ramet.updateSandbox("box", { ttl_secs: 5 })), 3);
  const once = new Blob(["x"]).stream();
  assert.equal(await tries(ramet.writeFile("box", once, "f")), 1);
});

test("only what the server marks retryable is tried again, when it said", async () => {
  const ramet = client({ maxRetries: 2 });
  const counted = async (...answers) => {
    fake.answer(...answers);
    await Promise.allSettled([ramet.getSandbox("box")]);
    return fake.requests.length;
  };
  assert.equal(await counted(error(500, "internal.error")), 1);
  assert.equal(await counted(error(404, "sandbox.not_found")), 1);
  assert.equal(await counted(error(507, "capacity.storage")), 1);
  assert.equal(await counted(error(503, "capacity.busy", { retryable: true })), 3);
  assert.equal(await counted(error(429, "rate_limit.requests"), json(200, {})), 2);
  // A command that the guest may have begun is not run again, one that was refused is.
  fake.answer(error(503, "capacity.guest_gone", { retryable: true }));
  assert.equal((await failure(ramet.exec("box", { command: "x", timeout_secs: 1 }))).code, "capacity.guest_gone");
  assert.equal(fake.requests.length, 1);
  fake.answer(error(503, "capacity.busy", { retryable: true }), json(200, { exit_code: 0 }));
  assert.equal((await ramet.exec("box", { command: "x", timeout_secs: 1 })).exit_code, 0);
  assert.equal(fake.requests.length, 2);
  // Asked to wait for longer than the call has: the error itself, now.
  fake.answer(error(429, "rate_limit.requests", {}, { "retry-after": "3600" }));
  const thrown = await failure(client({ timeoutMs: 2000 }).getSandbox("box"));
  assert.deepEqual([thrown.status, thrown.retryAfterSecs, fake.requests.length], [429, 3600, 1]);
});

test("a removal whose answer was lost has happened", async () => {
  fake.answer(lost, error(404, "sandbox.not_found"));
  await client().deleteSandbox("box");
  fake.answer(error(404, "sandbox.not_found"));
  assert.equal((await failure(client().deleteSandbox("box"))).status, 404);
});

// ---- Time and aborts ----

test("A03 a call has a bound, and a command's grows with its own", async () => {
  fake.answer(silence);
  const thrown = await failure(client({ timeoutMs: 50 }).getSandbox("box"));
  assert.deepEqual([thrown.code, thrown.status], ["client.timeout", 0]);
  assert.match(thrown.message, /GET \/v1\/sandboxes\/box took more than 50 ms/);
  await fake.until(() => fake.open.size === 0);
  fake.answer((_, response) => setTimeout(() => json(200, { exit_code: 0 })(_, response), 200));
  const result = await client({ timeoutMs: 50 }).exec("box", { command: "x", timeout_secs: 5 });
  assert.equal(result.exit_code, 0, "its time-out is 5 s and something, not 50 ms");
  const early = await failure(client().exec("box", { command: "x", timeout_secs: 5 }, { timeoutMs: 30 }));
  assert.equal(early.code, "client.timeout");
});

test("A03 an abort ends the request wherever it is", async () => {
  const ramet = client();
  const endsBy = async (start, handler, wait) => {
    fake.answer(handler);
    const controller = new AbortController();
    const promise = start(controller.signal);
    promise.catch(() => undefined);
    await wait();
    controller.abort();
    const thrown = await failure(promise);
    assert.equal(thrown.name, "AbortError");
    await fake.until(() => fake.open.size === 0);
  };
  const arrived = () => fake.until(() => fake.requests.length > 0);
  await endsBy((signal) => ramet.getSandbox("box", { signal }), silence, arrived);
  await endsBy((signal) => ramet.exec("box", "sleep 100", { signal }), silence, arrived);
  await endsBy((signal) => ramet.readFile("box", "f", { signal }), (_, response) => response.write("beginning"), arrived);
  await endsBy((signal) => all(ramet.events({ signal })), (_, response) =>
    response.writeHead(200, { "content-type": "text/event-stream" }).write(": hello\n\n"), arrived);
  let cancelled = false;
  const endless = new ReadableStream({
    async pull(controller) {
      await new Promise((resolve) => setImmediate(resolve));
      if (!cancelled) controller.enqueue(new Uint8Array(65536));
    },
    cancel: () => (cancelled = true),
  });
  const early = Object.assign((request) => request.resume(), { early: true });
  await endsBy((signal) => ramet.writeFile("box", endless, "f", {}, { signal }), early, arrived);
  assert.ok(cancelled, "what was being sent is let go of");
  // While it waits to try again.
  const busy = error(503, "capacity.busy", { retryable: true, retry_after_secs: 15 });
  await endsBy((signal) => ramet.getSandbox("box", { signal }), busy, arrived);
  const thrown = await failure(ramet.getSandbox("box", { signal: AbortSignal.abort(new Error("mine")) }));
  assert.equal(thrown.message, "mine");
  assert.equal(fake.requests.length, 1, "an aborted call sends nothing");
});

test("a download into a folder that is not there ends its request", async () => {
  fake.answer((_, response) => response.write("beginning"));
  assert.equal((await failure(client().downloadFile("box", "f", "/nonexistent/folder/f"))).code, "ENOENT");
  await fake.until(() => fake.open.size === 0);
});

test("A03 a month's time-out is not one of no time", async () => {
  fake.answer(json(200, { exit_code: 0 }));
  await client().getSandbox("box", { timeoutMs: 40 * 86400e3 });
  fake.answer(events([event("exit", { exit_code: 0 })]));
  assert.equal((await client().exec("box", { command: "x", timeout_secs: 40 * 86400 })).exit_code, 0);
});

test("leaving a loop ends its request", async () => {
  fake.answer((_, response) => {
    response.writeHead(200, { "content-type": "text/event-stream" });
    response.write(event("stdout", { text: "1" }) + event("stdout", { text: "2" }));
  });
  for await (const one of client().execStream("box", "yes")) if (one.data.text === "2") break;
  await fake.until(() => fake.open.size === 0);
  const stream = client().execStream("box", "yes");
  await stream.open();
  stream.close();
  await fake.until(() => fake.open.size === 0);
  assert.deepEqual(await all(stream), []);
});

test("A02 a stream that is closed while it connects again ends, with its request", async () => {
  fake.answer(events([event("stdout", { text: "1", offset: 1 }, "1")], { breakOff: true }), silence);
  const stream = client().jobLogs("box", 1);
  const reads = all(stream);
  await fake.until(() => fake.requests.length === 2);
  stream.close();
  assert.equal((await reads).length, 1);
  await fake.until(() => fake.open.size === 0);
  fake.answer(silence);
  const another = client().jobLogs("box", 1);
  const opens = failure(another.open());
  await fake.until(() => fake.requests.length === 1);
  another.close();
  assert.equal((await opens).code, "client.closed");
  await fake.until(() => fake.open.size === 0);
});

test("a connection into a sandbox that is let go of, or refused in half a sentence", async () => {
  let gone;
  fake.onUpgrade = (_, socket) => {
    gone = new Promise((resolve) => socket.on("close", resolve).on("end", () => socket.end()).on("error", () => undefined).resume());
    socket.write("HTTP/1.1 101 Words\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n");
  };
  const controller = new AbortController();
  const port = await client().openPort("box", 80, { signal: controller.signal });
  await port.readable.cancel();
  await gone;
  await new Promise((resolve) => setImmediate(resolve));
  controller.abort();
  fake.onUpgrade = (_, socket) => socket.write("HTTP/1.1 404 Words\r\nContent-Length: 100\r\n\r\n{", () => socket.destroy());
  assert.equal((await failure(client().openPort("box", 80, { timeoutMs: 60_000 }))).code, "client.network");
});

// ---- Errors and addresses ----

test("errors are read whatever their shape", async () => {
  const given = async (handler) => {
    fake.answer(handler);
    return failure(client({ maxRetries: 0 }).getSandbox("box"));
  };
  const ours = await given(error(409, "sandbox.conflict", { field: "name" }));
  assert.deepEqual([ours.name, ours.status, ours.code, ours.message, ours.requestId, ours.retryable, ours.details.field],
    ["RametError", 409, "sandbox.conflict", "words for sandbox.conflict", "req_1", false, "name"]);
  const proxy = await given((_, response) => response.writeHead(502, { "x-request-id": "req_2" }).end("<html>bad gateway</html>"));
  assert.deepEqual([proxy.code, proxy.requestId], ["http.502", "req_2"]);
  assert.match(proxy.message, /502.*bad gateway/);
  assert.match((await given((_, response) => response.writeHead(500).end())).message, /500 without words/);
  assert.equal((await given((_, response) => response.end("{"))).code, "client.protocol");
  const nobody = await failure(new Ramet({ url: "http://127.0.0.1:9999", maxRetries: 0, fetch }).getSandbox("box"));
  assert.equal(nobody.code, "client.network");
  assert.match(nobody.message, /is the server running there/);
});

test("addresses, keys and names go as they should", async () => {
  fake.answer(json(200, { entries: [] }));
  for (const url of [fake.url, fake.url + "/", fake.url + "/v1", fake.url + "/v1/"]) await client({ url }).listFiles("a", "ü & ?/#");
  assert.ok(fake.requests.every((request) => request.url === "/v1/sandboxes/a/files?path=%C3%BC%20%26%20%3F%2F%23"));
  assert.equal(fake.requests[0].headers.authorization, "Bearer e2b_00");
  process.env.RAMET_API = fake.url;
  process.env.RAMET_API_KEY = "e2b_env";
  fake.answer(json(200, { id: "sbx_1", name: "x", state: "running" }));
  const found = await Sandbox.get("x");
  assert.equal(fake.requests[0].headers.authorization, "Bearer e2b_env");
  assert.equal(found.state, "running");
  delete process.env.RAMET_API;
  delete process.env.RAMET_API_KEY;
  assert.equal(new Ramet().transport.url, "http://127.0.0.1:7480");
  assert.throws(() => new Ramet({ url: "localhost:7480" }), { code: "client.usage" });
  assert.throws(() => new Ramet({ url: "unix:///run/ramet/api.sock" }), /--listen/);
  for (const name of ["", "..", undefined]) assert.throws(() => client().getSandbox(name), { code: "client.usage" });
  assert.equal((await failure(client().writeFile("box", "bad \ud800 text", "f"))).code, "client.usage");
  await assert.rejects(Sandbox.create({ template: "a", from: "b", client: client() }), { code: "client.usage" });
});

test("Sandbox.create sends the wire's names", async () => {
  fake.answer(json(201, { id: "sbx_1", name: "x", state: "running" }));
  await Sandbox.create({ template: "code-interpreter", ttlSeconds: 3600, idleSecs: 5, metadata: { a: "b" }, memoryMb: 512,
    onTimeout: "delete", autoStart: true, environment: false, client: client() });
  assert.deepEqual(JSON.parse(fake.requests[0].body), { from: "code-interpreter", ttl_secs: 3600, idle_secs: 5, labels: { a: "b" },
    memory_mb: 512, on_timeout: "delete", auto_start: true, environment: false });
});

test("what a stream comes to is what the whole call would have said", async () => {
  const end = { execution_count: 3, duration_ms: 5, timed_out: false, interrupted: false, truncated: false, state_lost: null };
  fake.answer(events([
    event("started", { execution_count: 3 }), event("stdout", { text: "old" }), event("display", { type: "display", text: "gone" }),
    event("clear", { wait: true }), event("stdout", { text: "n" }), event("stdout", { text: "ew" }),
    event("display", { type: "display", text: "first", display_id: "d" }), event("result", { type: "result", text: "42", png: "AAEC" }),
    event("update_display", { type: "display", text: "second", display_id: "d" }), event("stderr", { text: "warned" }),
    event("error", { name: "ValueError", value: "v", traceback: "Traceback: v" }), event("done", end),
  ]));
  const run = await client().runCode("box", "python", "code");
  assert.deepEqual(run, { ...end, stdout: "new", stderr: "warned", text: "42", error: { name: "ValueError", value: "v", traceback: "Traceback: v" },
    results: [{ type: "display", text: "second", display_id: "d" }, { type: "result", text: "42", png: "AAEC" }] });
  // 16 MiB of each stream are kept, cut between characters.
  const text = "€".repeat(1 << 20);
  const exit = event("exit", { exit_code: 3, timed_out: false, truncated: false, duration_ms: 1 });
  fake.answer(events([...Array(6).fill(event("stdout", { text })), event("stderr", { text: "e" }), exit]));
  const result = await client().exec("box", "flood");
  assert.equal(Buffer.byteLength(result.stdout), Math.floor((16 << 20) / 3) * 3);
  assert.deepEqual([result.truncated, result.stderr, result.exit_code], [true, "e", 3]);
  fake.answer(events([event("stdout", { text: "\ufffd", base64: "/w==" }), event("stdout", { text: "a", base64: "YQ==" }), exit]));
  assert.equal((await client().exec("box", { command: "x", encoding: "base64" })).stdout_base64, "/2E=");
});
