// SPDX-License-Identifier: Apache-2.0
// What e2b and @e2b/code-interpreter (npm) call of sandboxes, their results, and the class that each error becomes.
import { createRequire } from "node:module";
import { watch } from "../called.mjs";
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
  const again = await box.commands.run("cat; echo end", { background: true, stdin: true });
  await box.commands.sendStdin(again.pid, "1\n2\n");
  const other = await box.commands.connect(again.pid);
  await again.disconnect();
  await again.closeStdin();
  check("connect", [other.pid, (await other.wait()).exitCode], [again.pid, 0]);
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
  await box.runCode("gone = 1", { context });
  await box.restartCodeContext(context);
  check("restartCodeContext", (await box.runCode("gone", { context })).error.name, "NameError");
  await box.removeCodeContext(context);
  check("getHost", box.getHost(8000).startsWith("8000-sbx_"), true);
  check("listCodeContexts", (await box.listCodeContexts()).map((each) => each.id), ["python"]);
}

const until = async (condition) => {
  while (!(await condition())) await new Promise((resolve) => setTimeout(resolve, 200));
};

async function lifecycle() {
  const box = await Sandbox.create("base", { timeoutMs: 900_000, lifecycle: { onTimeout: "pause", autoResume: true } });
  check("lifecycle", (await box.getInfo()).lifecycle, { onTimeout: "pause", autoResume: true });
  await box.updateNetwork({ allowInternetAccess: false });
  const native = await fetch(`${process.env.E2B_API_URL}/v1/sandboxes/${box.sandboxId}`, { headers: { "X-API-Key": process.env.E2B_API_KEY } });
  check("updateNetwork", (await native.json()).network, "none");
  await box.pause();
  check("autoResume", (await box.commands.run("echo back")).stdout, "back\n");
  await box.kill();
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
  check("listSnapshots", (await box.listSnapshots().nextItems()).map((each) => each.snapshotId), [snapshot.snapshotId]);
  check("getMetrics", (await box.getMetrics()).map((each) => each.cpuCount >= 1 && each.memUsed > 0), [true]);
  const other = await Sandbox.create(snapshot.snapshotId);
  check("create from a snapshot", (await other.runCode("kept")).text, "41");
  await other.kill();
  check("deleteSnapshot", await Sandbox.deleteSnapshot(snapshot.snapshotId), true);
  const forks = await box.fork({ count: 2 });
  check("fork", [(await forks[0].runCode("kept")).text, (await forks[1].runCode("kept")).text], ["41", "41"]);
  check("kill", await forks[0].kill(), true);
  await forks[1].setTimeout(1000);    // a time-out kills, unless something else was asked for
  await until(async () => !(await Sandbox.list().nextItems()).some((each) => each.sandboxId === forks[1].sandboxId));
}

await raises("a wrong key", "AuthenticationError", "not known here", () => Sandbox.create({ apiKey: "e2b_00" }));
await raises("connect to none", "SandboxNotFoundError", "sbx_0", () => Sandbox.connect("sbx_000000000000"));
const checked = watch({ Base: e2b.Sandbox, Sandbox, Git: e2b.Git, Template: e2b.TemplateBase, Volume: e2b.Volume, Secret: e2b.Secret });
const box = await Sandbox.create({ timeoutMs: 1_500_000, metadata: { who: "me & you" }, envs: { E: "1" } });
check("create", await box.isRunning(), true);
const parts = watch({ Commands: box.commands.constructor, Pty: box.pty.constructor, Files: box.files.constructor });
for (const part of [commands, terminal, files, code, life]) await part(box);
await lifecycle();
check("kill", [await box.kill(), await box.kill()], [true, false]);
await raises("run in a killed one", "SandboxNotFoundError", "", () => box.commands.run("true"));
checked({
  "Base.getMcpUrl": "no MCP server in the machine", "Base.getMcpToken": "no MCP server in the machine",
  "Base.uploadUrl": "signed URLs are not served", "Base.downloadUrl": "signed URLs are not served", "Base.fileUrl": "of these",
  "Base.betaPause": "the same as pause", "Sandbox.handleRequestError": "what becomes of the package's own failures", "Git.*": "commands of git, by commands.run; the template has to have git",
  "Template.*": "Template.build is not served", "Volume.*": "volumes are attached otherwise", "Secret.*": "no store of secrets",
});
parts({
  "Pty.connect": "a terminal ends with its connection", "Pty.kill": "the request of commands.kill",
  "Files.writeFiles": "the request of write with a list",
});
console.log(tried, "checks of e2b and @e2b/code-interpreter", e2b.Sandbox === undefined);
process.exit(0);
