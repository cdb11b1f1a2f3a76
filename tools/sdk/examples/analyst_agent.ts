// SPDX-License-Identifier: Apache-2.0
// An agent that analyses: the OpenAI Agents SDK with one Python kernel that keeps its variables; the chart comes back as a
// picture.
//
// usage: node analyst_agent.js [--chart FILE] [--stream] [QUESTION ...]
//
// needs `npm install @ramet/sdk @openai/agents zod`, OPENAI_API_KEY, and a template `code-interpreter`
// (`ramet template build code-interpreter`). Each QUESTION is a turn of one conversation, in one kernel. The last chart goes to
// FILE (chart.png).
import { writeFile } from "node:fs/promises";
import { parseArgs } from "node:util";
import { Agent, type AgentInputItem, tool, user } from "@openai/agents";
import { type CodeContext, Sandbox } from "@ramet/sdk";
import { z } from "zod";
import { turn } from "./turn.js";

/** The kernel, and the charts that code drew in it. Pictures stay here; the model is told that they were drawn. */
class Notebook {
  readonly charts: Uint8Array[] = [];

  constructor(readonly context: CodeContext) {}

  /** What the model is to know of a run: its output, value and tables, or the traceback to learn from. */
  async run(code: string): Promise<string> {
    const execution = await this.context.runCode(code, { timeoutSecs: 300 });
    if (execution.error !== undefined) return `It failed:\n${execution.error}`;
    const drawn = execution.results.map((result) => result.pngBytes()).filter((chart) => chart !== undefined);
    this.charts.push(...drawn);
    const parts = [execution.stdout, execution.html ?? execution.text ?? "", drawn.length > 0 ? `[${drawn.length} chart(s) drawn and kept]` : ""];
    return parts.filter((part) => part !== "").join("\n") || "It ran and showed nothing.";
  }
}

/** The agent whose one tool is this kernel. */
function makeAnalyst(notebook: Notebook): Agent {
  const python = tool({
    name: "python",
    description:
      "Run Python in a notebook kernel of its own machine. Variables and imports stay for the next call. The last line's value is " +
      "shown, and figures of matplotlib and plotly are kept by themselves: save none to files.",
    parameters: z.object({ code: z.string().describe("The lines to run; `!pip install NAME` is fine too.") }),
    execute: ({ code }) => notebook.run(code),
  });
  return new Agent({
    name: "Analyst",
    tools: [python],
    instructions:
      "You answer questions about numbers by running Python. Go step by step: the kernel remembers what you computed before. When " +
      "code fails, read the traceback and mend it. Draw with matplotlib.",
  });
}

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: { chart: { type: "string", default: "chart.png" }, stream: { type: "boolean", default: false } },
});
const questions =
  positionals.length > 0
    ? positionals
    : ["How do the first 20 triangular numbers grow? Draw them on a logarithmic axis, and name the last one."];
const sandbox = await Sandbox.create({ template: "code-interpreter", ttlSeconds: 1800 });
try {
  const notebook = new Notebook(await sandbox.createCodeContext());
  const analyst = makeAnalyst(notebook);
  let history: AgentInputItem[] = [];
  for (const question of questions) {
    history = await turn(analyst, [...history, user(question)], { stream: values.stream === true });
  }
  const last = notebook.charts.at(-1);
  if (last !== undefined) {
    await writeFile(values.chart ?? "chart.png", last);
    console.log(`the chart is in ${values.chart}`);
  }
  await notebook.context.close();
} finally {
  await sandbox.kill();
}
