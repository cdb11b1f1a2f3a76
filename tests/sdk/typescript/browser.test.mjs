// SPDX-License-Identifier: Apache-2.0
// A page from another address uses the SDK in headless Chromium, with keys that its own server made for it. The browser is driven
// over its pipe (DevTools protocol, messages ended by a zero byte).
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import fs from "node:fs/promises";
import http from "node:http";
import { after, before, test } from "node:test";
import { Ramet } from "@ramet/sdk";

const folder = process.env.RAMET_TEST_FOLDER;
const sdk = new URL("./node_modules/@ramet/sdk/dist/", import.meta.url);
const ramet = new Ramet();
let server;
let browser;

/** The page, the SDK as it was built, and keys: what a user's own server would give out. */
async function serve(request, response) {
  const { pathname } = new URL(request.url, "http://page");
  const send = (type, body) => response.writeHead(200, { "content-type": type, "cache-control": "no-store" }).end(body);
  if (pathname === "/") return send("text/html", await fs.readFile(new URL("./page.html", import.meta.url)));
  if (pathname === "/config") {
    const { key } = await ramet.createKey({ name: "page", preset: "ci", expires_in_secs: 900 });
    const { key: shortKey } = await ramet.createKey({ name: "page-brief", preset: "ci", expires_in_secs: 2 });
    return send("application/json", JSON.stringify({ url: ramet.transport.url, key, shortKey }));
  }
  const name = /^\/sdk\/([a-z_]+\.js)$/.exec(pathname)?.[1];
  if (name !== undefined) return send("text/javascript", await fs.readFile(new URL(name, sdk)));
  response.writeHead(404).end();
}

class Browser {
  #next = 1;
  #waiting = new Map();
  #listeners = new Map();

  constructor(program, profile) {
    const flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-extensions",
      "--disable-background-networking", "--disable-component-update", "--window-size=1000,1000", `--user-data-dir=${profile}`,
      "--remote-debugging-pipe", "about:blank"];
    this.process = spawn(program, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    this.ended = new Promise((resolve) => this.process.on("exit", resolve));
    this.ended.then(() => this.#waiting.forEach(({ reject }) => reject(new Error("the browser ended"))));
    this.process.stdio[3].on("error", () => undefined);
    let text = "";
    this.process.stdio[4].setEncoding("utf8").on("data", (piece) => {
      const messages = (text + piece).split("\0");
      text = messages.pop();
      for (const message of messages) this.#take(JSON.parse(message));
    });
  }

  #take(message) {
    if (message.id === undefined) return this.#listeners.get(message.method)?.(message.params);
    const { resolve, reject } = this.#waiting.get(message.id);
    this.#waiting.delete(message.id);
    if (message.error) reject(new Error(`${message.error.message} ${message.error.data ?? ""}`));
    else resolve(message.result);
  }

  send(method, params = {}, sessionId = undefined) {
    const id = this.#next++;
    this.process.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + "\0");
    return new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
  }

  once(event) {
    return new Promise((resolve) => this.#listeners.set(event, resolve));
  }
}

before(async () => {
  server = http.createServer((request, response) => void serve(request, response).catch((error) => response.destroy(error)));
  await new Promise((resolve) => server.listen({ fd: Number(process.env.RAMET_PAGE_FD) }, resolve));
  browser = new Browser(process.env.RAMET_CHROMIUM, `${folder}/profile`);
});

after(async () => {
  await browser.send("Browser.close").catch(() => undefined);
  await browser.ended;
  server.closeAllConnections();
  server.close();
});

test("a page with a short-lived key has a sandbox of its own", async () => {
  const { targetId } = await browser.send("Target.createTarget", { url: "about:blank" });
  const { sessionId } = await browser.send("Target.attachToTarget", { targetId, flatten: true });
  const tell = (method, params) => browser.send(method, params, sessionId);
  await tell("Page.enable");
  const loaded = browser.once("Page.loadEventFired");
  await tell("Page.navigate", { url: `${process.env.RAMET_PAGE}/` });
  await loaded;
  const answer = await tell("Runtime.evaluate", { expression: "finished", awaitPromise: true, returnByValue: true });
  const seen = answer.result.value;
  const picture = Buffer.from((await tell("Page.captureScreenshot", { format: "png" })).data, "base64");
  await fs.writeFile(process.env.RAMET_TEST_SCREENSHOT ?? `${folder}/page.png`, picture);
  assert.equal(seen.failed, undefined, `${seen.failed}\n${JSON.stringify(seen, null, 1)}`);
  assert.equal(seen.created, "running");
  assert.deepEqual(seen.command, ["out\n", "err\n", 3]);
  assert.deepEqual(seen.stream, ["a\n", "b\n", 0]);
  assert.deepEqual(seen.files, { same: true, sizes: [131072, 65536], part: 64 });
  assert.match(seen.terminal.text, /20 90[^]*you typed: grüße/);
  assert.equal(seen.terminal.ended, 5);
  assert.ok(seen.chart.width > 300 && seen.chart.height > 200 && seen.chart.colours > 20, JSON.stringify(seen.chart));
  assert.equal(seen.abort, "AbortError");
  assert.deepEqual([seen.missing.status, seen.missing.code, seen.missing.ours], [404, "sandbox.not_found", true]);
  assert.deepEqual([seen["no key"].status, seen["no key"].code], [401, "auth.missing"]);
  assert.deepEqual([seen["terminal without key"].status, seen["terminal without key"].code], [401, "auth.invalid"]);
  assert.deepEqual(seen.others, ["from-a-page"], "a ci key sees what it made");
  assert.deepEqual([seen.expired.status, seen.expired.code], [401, "auth.expired"]);
  assert.match(seen.expired.message, /expired/);
  assert.equal(seen.killed, 404);
  assert.ok(picture.length > 20000, "the page was drawn");
});
