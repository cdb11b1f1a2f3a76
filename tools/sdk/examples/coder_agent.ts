// SPDX-License-Identifier: Apache-2.0
// An agent that programs: the OpenAI Agents SDK with a machine of its own for each conversation.
//
// usage: node coder_agent.js [--conversation NAME] [--keep] [--stream] [TASK]
//
// needs `npm install @ramet/sdk @openai/agents zod`, OPENAI_API_KEY, and RAMET_API (with RAMET_API_KEY) for a server that is
// not this machine's. A NAME finds the machine that it had before, as it was left; with --keep it is stopped, not deleted, and
// goes on where it was next time.
import { parseArgs } from "node:util";
import { Agent, type RunContext, tool } from "@openai/agents";
import { Ramet, RametError } from "@ramet/sdk";
import { z } from "zod";
import { turn } from "./turn.js";

const MOST = 16_000; // characters of a tool's answer: a build's log would fill the model's context

/** What tools get and the model never sees: whose machine it is. */
interface Desk {
  ramet: Ramet;
  box: string;
}

/** The conversation's machine, running: made on its first turn, woken up on a later one. */
export async function openDesk(ramet: Ramet, name: string): Promise<Desk> {
  try {
    let { state } = await ramet.getSandbox(name);
    if (state === "stopping") state = (await ramet.waitUntil(name, "stopped"))!.state;
    if (state === "stopped") await ramet.startSandbox(name, {});
    await ramet.waitUntil(name, "running");
  } catch (error) {
    if (!(error instanceof RametError && error.status === 404)) throw error;
    // environment false: none of the server's own variables, since the model runs what it likes in there.
    await ramet.createSandboxes({ name, ttl_secs: 1800, environment: false, labels: { example: "coder" } });
  }
  return { ramet, box: name };
}

/** The end of it, which is where a command says why it failed. */
function shorten(text: string): string {
  return text.length <= MOST ? text : `(${text.length - MOST} characters left out)\n${text.slice(-MOST)}`;
}

function deskOf(context: RunContext<unknown> | undefined): Desk {
  return (context as RunContext<Desk>).context;
}

const shell = tool({
  name: "shell",
  description: "Run a line of bash on your Linux machine, in /home/user, and see its exit code and output.",
  parameters: z.object({
    command: z.string().describe("What to run; pipes and && are fine. Nothing can be typed into it."),
    timeout_secs: z.number().describe("After so many seconds it is ended with all that it started."),
  }),
  async execute({ command, timeout_secs }, context) {
    const { ramet, box } = deskOf(context);
    const done = await ramet.exec(box, { command, timeout_secs });
    const parts = [`exit code ${done.exit_code}${done.timed_out ? ", out of time" : ""}`];
    if (done.stdout !== "") parts.push(`stdout:\n${shorten(done.stdout)}`);
    if (done.stderr !== "") parts.push(`stderr:\n${shorten(done.stderr)}`);
    return parts.join("\n");
  },
});

const save = tool({
  name: "save",
  description: "Write a text file, in place of one that is there. Missing folders are made.",
  parameters: z.object({
    path: z.string().describe("Below /home/user, unless it begins with a slash."),
    text: z.string().describe("All that the file shall hold."),
  }),
  async execute({ path, text }, context) {
    const { ramet, box } = deskOf(context);
    await ramet.writeFile(box, text, path);
    return `${path} has ${text.length} characters now`;
  },
});

const show = tool({
  name: "show",
  description: "Read a text file.",
  parameters: z.object({ path: z.string().describe("Below /home/user, unless it begins with a slash.") }),
  async execute({ path }, context) {
    const { ramet, box } = deskOf(context);
    try {
      return shorten(await ramet.readText(box, path));
    } catch (error) {
      // A sentence that says what is wrong helps a model more than a failed tool.
      if (error instanceof RametError) return error.message;
      throw error;
    }
  },
});

const coder = new Agent<Desk>({
  name: "Coder",
  instructions: "You program on a Linux machine of your own. Write files, run them, and believe only what you saw run.",
  tools: [shell, save, show],
});

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    conversation: { type: "string", default: "coder-demo" },
    keep: { type: "boolean", default: false },
    stream: { type: "boolean", default: false },
  },
});
const task = positionals[0] ?? "Write a program that counts the words of its input, and show that it works.";
const ramet = new Ramet();
const desk = await openDesk(ramet, values.conversation ?? "coder-demo");
try {
  await turn(coder, task, { context: desk, maxTurns: 30, stream: values.stream === true });
} finally {
  if (values.keep === true) await ramet.stopSandbox(desk.box);
  else await ramet.deleteSandbox(desk.box);
}
