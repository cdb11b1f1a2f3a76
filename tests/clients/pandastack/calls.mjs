// SPDX-License-Identifier: Apache-2.0
// Every sandbox call of @pandastack/sdk (npm), its result, and the class that each error becomes. "bare": the address has no
// /pandastack at its end, so that only what a request itself says can be translated.
import { createRequire } from "node:module";
import { readFile, writeFile } from "node:fs/promises";
import http from "node:http";
import { watch } from "../called.mjs";
import { check, raises, tried } from "../checks.mjs";

const require = createRequire(process.argv[2] + "/");
const panda = require("@pandastack/sdk");
const { Sandbox } = panda;
const bare = process.argv[3] === "bare";
const client = new panda.Client({ timeoutMs: 300_000 });

// By the unix socket: what their client has no call for.
function native(method, path, body) {
  return new Promise((resolve, reject) => {
    const request = http.request({ socketPath: process.env.RAMET_SOCKET, method, path }, (answer) => {
      let text = "";
      answer.on("data", (piece) => (text += piece));
      answer.on("end", () => (answer.statusCode < 300 ? resolve(text ? JSON.parse(text) : null) : reject(new Error(text))));
    });
    request.on("error", reject);
    request.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

async function errors() {
  const wrong = new panda.Client({ apiKey: "e2b_00" });
  const denied = await raises("a wrong key", panda.AuthError, "not known here", () => wrong.sandboxes.list());
  check("statusCode", denied.statusCode, 401);
  await raises("get of none", panda.NotFoundError, 'no sandbox called "nope"', () => Sandbox.get("nope", client));
  await raises("a bad ttl", panda.BadRequestError, "ttl_secs", () => Sandbox.create({ ttlSeconds: -1 }, client));
}

async function absent() {
  await raises("databases.list", panda.NotFoundError, "Ramet has no managed databases", () => client.databases.list());
  await raises("apps.list", panda.NotFoundError, "Ramet has no app hosting", () => client.apps.list());
  await raises("functions.list", panda.NotFoundError, "Ramet has no functions", () => client.functions.list());
  await raises("schedules.list", panda.NotFoundError, "Ramet has no schedules", () => client.schedules.list());
}

async function commands(box) {
  const result = await box.exec("echo out; echo err >&2; exit 3");
  check("exec", [result.stdout, result.stderr, result.exit_code, result.exitCode], ["out\n", "err\n", 3, 3]);
  check("commands.run", (await box.commands.run("echo $((6 * 7))")).stdout, "42\n");
  const failed = await raises("exec check", panda.CommandError, "code 4", () => box.exec("echo why >&2; exit 4", { check: true }));
  check("CommandError", [failed.exitCode, failed.stderr], [4, "why\n"]);
  await raises("exec timeout", panda.SandboxTimeout, "timed out", () => box.exec("sleep 600", { timeoutSeconds: 1 }));
  const out = [], err = [];
  const code = await box.execStream("echo one; echo two >&2; exit 5", { onStdout: (t) => out.push(t), onStderr: (t) => err.push(t) });
  check("execStream", [code, out.join(""), err.join("")], [5, "one\n", "two\n"]);
  await raises("execStream timeout", panda.SandboxTimeout, "timeout", () => box.execStream("sleep 600", { timeoutSeconds: 1 }));
  check("runCode python", (await box.runCode("print(6 * 7)", "python")).stdout, "42\n");
  check("runCode shell", (await box.runCode("echo $((6 * 7))")).stdout, "42\n");
}

async function files(box) {
  const files = box.filesystem;
  const bytes = new Uint8Array(50000).map((_, i) => 32 + (i % 90));
  check("filesystem.write", await files.write("/home/user/work/deep/a", bytes), { path: "/home/user/work/deep/a", bytes: 50000 });
  check("filesystem.read", await files.read("/home/user/work/deep/a"), Buffer.from(bytes).toString());
  await files.write("/home/user/work/text", "grüße");
  await writeFile("local", "up");
  check("filesystem.upload", (await files.upload("local", "/home/user/work/up")).bytes, 2);
  await files.download("/home/user/work/text", "down");
  check("filesystem.download", await readFile("down", "utf8"), "grüße");
  const listed = (await files.list("/home/user/work")).map((f) => [f.name, f.is_dir, f.path]).sort();
  check("filesystem.list", listed, [["deep", true, "/home/user/work/deep"], ["text", false, "/home/user/work/text"],
    ["up", false, "/home/user/work/up"]]);
  const stat = await files.stat("/home/user/work/text");
  check("filesystem.stat", [stat.name, stat.is_dir, stat.size, stat.mode, stat.mtime > 1e9], ["text", false, 7, "0644", true]);
  check("filesystem.exists", [await files.exists("/home/user/work"), await files.exists("/home/user/none")], [true, false]);
  const walked = [];
  for await (const step of files.walk("/home/user/work")) walked.push([step.dir, step.dirs.length, step.files.length]);
  check("filesystem.walk", walked, [["/home/user/work", 1, 2], ["/home/user/work/deep", 0, 1]]);
  await raises("read of none", panda.NotFoundError, "none", () => files.read("/home/user/none"));
}

async function code(box) {
  const context = await box.createCodeContext();
  const first = await context.runCode("kept = 41; print('said')");
  check("runCode keeps", [first.stdout, first.results, first.error, first.exit_code], ["said\n", [], undefined, 0]);
  check("runCode text", (await context.runCode("kept + 1")).text, "42");
  const rich = await context.runCode(`
from IPython.display import JSON, Markdown, display
import base64
display({"image/png": base64.b64encode(b"\\x89PNG").decode(), "text/plain": "picture"}, raw=True)
display(JSON({"a": [1]}))
Markdown("**m**")`);
  check("runCode results", [rich.png, rich.results[1].json, rich.results[2].markdown, rich.results[0].chart],
    ["iVBORw==", { a: [1] }, "**m**", "iVBORw=="]);
  const failed = await context.runCode("1 / 0");
  check("runCode error", [failed.exit_code, failed.error.includes("ZeroDivisionError")], [1, true]);
  await raises("runCode timeout", panda.SandboxTimeout, "timed out",
    () => context.runCode("import time; time.sleep(600)", { timeoutSeconds: 1 }));
  await context.close();
  const left = (await native("GET", `/v1/sandboxes/${box.id}/contexts`)).contexts.map((each) => each.id);
  check("close", left.includes(context.id), false);
}

const status = async (box) => (await Sandbox.get(box.id, client)).status;

async function life(box) {
  await box.pause();
  check("pause", await status(box), "paused");
  await box.resume();
  check("resume", await status(box), "running");
  await box.filesystem.write("/tmp/kept", "kept");
  await box.hibernate();
  check("hibernate", await status(box), "hibernated");
  check("a call wakes", (await box.exec("cat /tmp/kept")).stdout, "kept");
  await box.hibernate();
  await box.wake();
  check("wake", await status(box), "running");
  check("setTtl", (await box.setTtl(5000)).ttl_seconds, 5000);
  check("setPersistent", (await box.setPersistent(true)).persistent, true);
  const seen = await box.lifecycle();
  check("lifecycle", [seen.ttl_seconds, seen.persistent, seen.idle_seconds], [5000, true, 0]);
}

async function branches(box) {
  const snapshot = await box.snapshot();
  check("snapshot", [snapshot.id.startsWith("snap_"), snapshot.sandbox_id], [true, box.id]);
  check("snapshots.list", (await client.snapshots.list({ sandbox_id: box.id })).map((s) => s.id), [snapshot.id]);
  check("snapshots.get", (await client.snapshots.get(snapshot.id)).sandbox_id, box.id);
  const again = await Sandbox.create({ fromSnapshot: snapshot.id }, client);
  check("create fromSnapshot", [again.info.from_snapshot, again.info.boot_mode], [snapshot.id, "snapshot"]);
  check("its memory", await again.filesystem.read("/tmp/kept"), "kept");
  await again.kill();
  await client.snapshots.delete(snapshot.id);
  await raises("snapshots.delete", panda.NotFoundError, "snap_", () => client.snapshots.get(snapshot.id));
  const child = await box.fork({ metadata: { who: "child" } });
  check("fork", [child.info.metadata.who, child.info.metadata.fork_parent_id, child.status], ["child", box.id, "running"]);
  await child.kill();
  const children = await box.forkTree({ count: 2, metadata: { who: "tree" } });
  const tree = children[0].info.metadata.fork_tree_id;
  check("forkTree", [children.length, children[1].info.metadata.fork_tree_id, children[1].info.metadata.who], [2, tree, "tree"]);
  const promoted = await children[1].promote({ cleanupSiblings: true, treeId: tree });
  check("promote", [promoted.winner, promoted.deleted, promoted.failures], [children[1].id, [children[0].id], {}]);
  await raises("promote reaps", panda.NotFoundError, children[0].id, () => Sandbox.get(children[0].id, client));
  await children[1].kill();
  const found = await box.explore(["exit 1", "echo PASS > /home/user/won; echo PASS"],
    { scoreFn: (one, outcome) => (outcome.stdoutTail.includes("PASS") ? 1 : 0) });
  check("explore", [await found.winner.filesystem.read("/home/user/won"), found.errors], ["PASS\n", []]);
  check("explore files", found.winnerOutcome.filesChanged, ["/home/user/won"]);
  await found.winner.kill();
}

async function outside(box) {
  await native("POST", `/v1/sandboxes/${box.id}/exec`, { command: "echo said on the console > /dev/console", user: "root" });
  let lines = [];
  while (!lines.includes("said on the console")) { // the console is slower than the answer
    lines = [];
    for await (const line of box.logs()) lines.push(line.trim());
  }
  check("logs", lines.includes("said on the console"), true);
  for await (const line of box.logs({ follow: true })) {
    check("logs follow", line, "said on the console");
    break;
  }
  await box.exec("nohup python3 -m http.server 8000 > /dev/null 2>&1 &");
  let seen = {};
  while (!(8000 in seen)) {
    await new Promise((resolve) => setTimeout(resolve, 200));
    seen = await box.previewUrls();
  }
  check("previewUrls", seen, { 8000: box.previewUrl(8000) });
  // Their client makes the string alone; the token comes into it by the host that it is told.
  const { token } = await client.request("POST", `/sandboxes/${box.id}/preview-token`, { json: { port: 8000 } });
  const server = new URL(client.apiUrl);
  client.previewHost = `localhost:${server.port}/?preview_token=${token}`;
  const url = new URL(box.previewUrl(8000, "http"));
  const status = await new Promise((resolve, reject) => {
    http.get({ host: server.hostname, port: server.port, path: url.pathname + url.search, headers: { host: url.host } },
      (answer) => resolve(answer.resume().statusCode)).on("error", reject);
  });
  check("previewUrl with a token", status, 200);
  delete client.previewHost;
}

async function templates() {
  const of = { name: "panda-ts", dockerfile: "FROM x\nRUN true\n", imageRef: "registry.example/panda:1" };
  await raises("templates.register", panda.BadRequestError, "ramet template build NAME --oci", () => client.templates.register(of));
  await raises("templates.buildFromDockerfile", panda.BadRequestError, "runs no Dockerfiles",
    () => client.templates.buildFromDockerfile({ ...of, context: { "a/b": "x" } }));
  await writeFile("rootfs.tar", "no archive at all".repeat(100));
  const build = await client.templates.build({ ...of, rootfs: "rootfs.tar" });
  await raises("templates.build", panda.TemplateBuildError, "the log says why", () => client.templates.waitForBuild(build.id, { intervalMs: 200 }));
  await raises("templates.delete", panda.NotFoundError, "panda-ts", () => client.templates.delete("panda-ts"));
}

async function things() {
  const data = await client.volumes.create({ name: "panda-data", size_mb: 64 });
  check("volumes.create", [data.name, data.size_mb], ["panda-data", 64]);
  check("volumes.list", (await client.volumes.list()).filter((v) => v.name === "panda-data").map((v) => v.size_mb), [64]);
  check("volumes.get", (await client.volumes.get("panda-data")).size_mb, 64);
  await client.volumes.delete("panda-data");
  await raises("volumes.delete", panda.NotFoundError, "panda-data", () => client.volumes.get("panda-data"));
  const template = await client.templates.get("code-interpreter");
  check("templates.get", [template.name, template.cpu >= 1, template.size_bytes > 0], ["code-interpreter", true, true]);
  if (!bare) {
    check("templates.list", (await client.templates.list()).map((each) => each.name), ["code-interpreter"]);
    const builds = await client.templates.builds();
    const made = builds.filter((each) => each.name === "code-interpreter");
    check("templates.builds", made.map((each) => [each.name, each.status]), [["code-interpreter", "done"]]);
    check("templates.buildStatus", (await client.templates.buildStatus(made[0].id)).status, "done");
    check("templates.waitForBuild", (await client.templates.waitForBuild(made[0].id)).name, "code-interpreter");
    const lines = [];
    for await (const line of client.templates.buildLogs(made[0].id)) lines.push(line);
    check("templates.buildLogs", lines.length > 0 && !lines.some((line) => line.startsWith("{")), true);
    await templates();
  }
  check("me", (await client.me()).name, "tests");
  const token = await client.tokens.create("panda-token");
  check("tokens.create", [token.token.startsWith("e2b_"), token.label], [true, "panda-token"]);
  check("tokens.list", (await client.tokens.list()).some((each) => each.prefix === token.prefix), true);
  const other = new panda.Client({ apiKey: token.token });
  check("a token's client", await other.sandboxes.list(), []);
  await client.tokens.revoke(token.prefix);
  await raises("tokens.revoke", panda.AuthError, "key", () => other.sandboxes.list());
}

const checked = watch({
  Client: panda.Client, Sandbox, CodeContext: panda.CodeContext, Snapshots: client.snapshots.constructor,
  Volumes: client.volumes.constructor, Templates: client.templates.constructor, Tokens: client.tokens.constructor,
  Sandboxes: client.sandboxes.constructor, Databases: client.databases.constructor, Apps: client.apps.constructor,
  Functions: client.functions.constructor, Schedules: client.schedules.constructor,
});
await errors();
await absent();
const box = await Sandbox.create({ template: "code-interpreter", metadata: { who: "me" }, ttlSeconds: 3000 }, client);
check("create", [box.status, box.template, box.info.metadata], ["running", "code-interpreter", { who: "me" }]);
check("list", (await Sandbox.list(client)).map((each) => each.id), [box.id]);
check("get", await status(box), "running");
// Classes that the package does not name.
const parts = watch({ Filesystem: box.filesystem.constructor, Commands: box.commands.constructor });
for (const part of bare ? [commands, files] : [commands, files, code, life, branches, outside]) await part(box);
await things();
await box.kill();
await raises("kill", panda.NotFoundError, box.id, () => Sandbox.get(box.id, client));
if (!bare) {
  checked({ "Databases.*": "404", "Apps.*": "404", "Functions.*": "404", "Schedules.*": "404" });
  parts({});
}
console.log(tried, "checks of @pandastack/sdk", bare ? "at the bare address" : "");
process.exit(0);
