// SPDX-License-Identifier: Apache-2.0
// What e2b and @e2b/code-interpreter (npm) call of sandboxes, their results, and the class that each error becomes.
import { createRequire } from "node:module";
import { check, raises, tried } from "../checks.mjs";

const require = createRequire(process.argv[2] + "/");
const e2b = require("e2b");
const { Sandbox } = require("@e2b/code-interpreter");

async function commands(box) {
  const result = await box.commands.run("echo out $E; echo err >&2");
  check("run", [result.stdout, result.stderr, result.exitCode], ["out 1\n", "err\n", 0]);
  const failed = await raises("run fails", "CommandExitError", "3", () => box.commands.run("echo why >&2; exit 3"));
  check("CommandExitError", [failed.exitCode, failed.stderr], [3, "why\n"]);
  const out = [];
  await box.commands.run("echo a; sleep 0.3; echo c", { onStdout: (text) => out.push(text) });
  check("streams", out.join(""), "a\nc\n");
  await raises("timeout", "TimeoutError", "timeoutMs", () => box.commands.run("sleep 600", { timeoutMs: 1000 }));
  const sleeper = await box.commands.run("sleep 600", { background: true });
  check("list", (await box.commands.list()).filter((p) => p.pid === sleeper.pid).map((p) => p.args), [["-l", "-c", "sleep 600"]]);
  check("kill", [await sleeper.kill(), await box.commands.kill(4000000)], [true, false]);
  await raises("a killed one", "CommandExitError", "Killed", () => sleeper.wait());
  const cat = await box.commands.run("cat; echo end", { background: true, stdin: true });
  await box.commands.sendStdin(cat.pid, "fed\n");
  await box.commands.closeStdin(cat.pid);
  check("sendStdin", (await cat.wait()).stdout, "fed\nend\n");
}

async function terminal(box) {
  let shown = "";
  const pty = await box.pty.create({ rows: 24, cols: 80, onData: (data) => (shown += Buffer.from(data).toString()) });
  await box.pty.resize(pty.pid, { rows: 30, cols: 101 });
  await box.pty.sendInput(pty.pid, new TextEncoder().encode("stty size; echo $((6 * 7))x; exit\n"));
  check("pty", [(await pty.wait()).exitCode, shown.includes("42x"), shown.includes("30 101")], [0, true, true]);
}

async function files(box) {
  const files = box.files;
  check("write", (await files.write("work/deep/a", "grüße")).path, "/home/user/work/deep/a");
  check("read", await files.read("work/deep/a"), "grüße");
  const bytes = new Uint8Array(500000).map((_, i) => i % 256);
  await files.write([{ path: "work/b", data: bytes.buffer }, { path: "/home/user/work/c", data: "c" }]);
  check("read bytes", Buffer.compare(Buffer.from(await files.read("work/b", { format: "bytes" })), Buffer.from(bytes)), 0);
  await raises("read of none", "FileNotFoundError", "none", () => files.read("none"));
  check("files.list", (await files.list("/home/user/work")).map((e) => [e.name, e.type]), [["b", "file"], ["c", "file"], ["deep", "dir"]]);
  const info = await files.getInfo("work/c");
  check("getInfo", [info.path, info.size, info.permissions, info.owner], ["/home/user/work/c", 1, "-rw-r--r--", "user"]);
  check("exists", [await files.exists("work"), await files.exists("none")], [true, false]);
  check("makeDir", [await files.makeDir("work/made"), await files.makeDir("work/made")], [true, false]);
  check("rename", (await files.rename("work/c", "work/d")).path, "/home/user/work/d");
  await files.remove("work/d");
  const seen = [];
  const watch = await files.watchDir("/home/user/work", (event) => seen.push(event.type + " " + event.name));
  await box.commands.run("echo x > /home/user/work/watched; rm /home/user/work/watched");
  while (!seen.includes("remove watched")) await new Promise((resolve) => setTimeout(resolve, 100));
  check("watchDir", seen.includes("create watched"), true);
  await watch.stop();
}

async function code(box) {
  const said = [];
  const run = await box.runCode("kept = 41; print('said'); kept + 1", { onStdout: (message) => said.push(message.line) });
  check("runCode", [run.text, run.logs.stdout, said, run.error], ["42", ["said\n"], ["said\n"], undefined]);
  const chart = await box.runCode("import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()");
  check("a chart", chart.results[0].png.startsWith("iVBORw0KGgo"), true);
  const failed = (await box.runCode("1 / 0")).error;
  check("an error", [failed.name, failed.traceback.includes("1 / 0")], ["ZeroDivisionError", true]);
  const context = await box.createCodeContext({ cwd: "/tmp" });
  check("createCodeContext", (await box.runCode("import os; os.getcwd()", { context })).text, "'/tmp'");
  await box.removeCodeContext(context);
  check("listCodeContexts", (await box.listCodeContexts()).map((each) => each.id), ["python"]);
}

async function life(box) {
  await box.setTimeout(2_000_000);
  const info = await box.getInfo();
  check("getInfo", [info.sandboxId, info.state, info.metadata], [box.sandboxId, "running", { who: "me & you" }]);
  const items = await Sandbox.list({ query: { metadata: { who: "me & you" } } }).nextItems();
  check("list", items.map((each) => each.sandboxId), [box.sandboxId]);
  check("pause", [await box.pause(), await box.isRunning()], [true, false]);
  const again = await Sandbox.connect(box.sandboxId);
  check("connect resumes", (await again.runCode("kept")).text, "41");
  const snapshot = await box.createSnapshot();
  const other = await Sandbox.create(snapshot.snapshotId);
  check("create from a snapshot", (await other.runCode("kept")).text, "41");
  await other.kill();
  check("deleteSnapshot", await Sandbox.deleteSnapshot(snapshot.snapshotId), true);
  const forks = await box.fork({ count: 2 });
  check("fork", [(await forks[0].runCode("kept")).text, (await forks[1].runCode("kept")).text], ["41", "41"]);
  for (const each of forks) check("kill", await each.kill(), true);
}

await raises("a wrong key", "AuthenticationError", "not known here", () => Sandbox.create({ apiKey: "e2b_00" }));
await raises("connect to none", "SandboxNotFoundError", "sbx_0", () => Sandbox.connect("sbx_000000000000"));
const box = await Sandbox.create({ timeoutMs: 1_500_000, metadata: { who: "me & you" }, envs: { E: "1" } });
check("create", await box.isRunning(), true);
for (const part of [commands, terminal, files, code, life]) await part(box);
check("kill", [await box.kill(), await box.kill()], [true, false]);
await raises("run in a killed one", "SandboxNotFoundError", "", () => box.commands.run("true"));
console.log(tried, "checks of e2b and @e2b/code-interpreter", e2b.Sandbox === undefined);
process.exit(0);
