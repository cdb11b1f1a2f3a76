// SPDX-License-Identifier: Apache-2.0
// One turn of an agent's conversation: what it answers is printed, whole or as it comes.
import { type Agent, type AgentInputItem, run } from "@openai/agents";

/** The conversation up to and with this turn, for the next one. */
export async function turn<Context>(
  agent: Agent<Context>,
  input: string | AgentInputItem[],
  how: { stream: boolean; context?: Context; maxTurns?: number },
): Promise<AgentInputItem[]> {
  const { stream, ...options } = how;
  if (!stream) {
    const result = await run(agent, input, options);
    console.log(result.finalOutput);
    return result.history;
  }
  const result = await run(agent, input, { ...options, stream: true });
  for await (const piece of result.toTextStream()) process.stdout.write(piece);
  await result.completed;
  process.stdout.write("\n");
  return result.history;
}
