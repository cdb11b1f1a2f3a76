// SPDX-License-Identifier: Apache-2.0
// What a call made whose answer was lost for good (an abort, no answer in time) has nobody who knows of it. The same call
// with the same Idempotency-Key tells what it was, making nothing a second time; it is removed then, in the background.
import { RametError } from "./errors.js";
import { type Call, newKey, type Transport } from "./transport.js";

/** The paths of what an answer says was made. */
export type Unmake<T> = (made: T) => readonly string[];

/** So long it is tried. */
const LIMIT_MS = 300_000;
/** Of one question; the server lets a second one wait for a minute. */
const ANSWER_MS = 90_000;

/** Makes something. Without a key of its caller's, what nobody heard of is removed. */
export async function create<T>(transport: Transport, call: Call, unmake: Unmake<T>): Promise<T> {
  if (call.idempotencyKey !== undefined) return transport.json<T>({ ...call, creates: true });
  const fate = { open: false };
  const whole: Call = { ...call, creates: true, idempotencyKey: newKey(), fate };
  try {
    return await transport.json<T>(whole);
  } catch (error) {
    if (fate.open) {
      void undo(transport, whole, unmake).catch(() => undefined);
      if (error instanceof RametError) error.message += "; what it may have made is removed in the background";
    }
    throw error;
  }
}

async function undo<T>(transport: Transport, call: Call, unmake: Unmake<T>): Promise<void> {
  const limit = Date.now() + LIMIT_MS;
  const found = await insist(transport, { ...call, signal: undefined }, limit);
  if (found === undefined) return;
  for (const path of unmake(JSON.parse(found) as T)) await insist(transport, { method: "DELETE", path }, limit);
}

/** Until there is an answer; undefined: it was refused, or is of no use any more. */
async function insist(transport: Transport, call: Call, limit: number): Promise<string | undefined> {
  for (let waitMs = 100; ; waitMs = Math.min(waitMs * 2, 5000)) {
    const fate = { open: false };
    let gone = false;
    try {
      return await transport.text({ ...call, fate, timeoutMs: ANSWER_MS, tries: 1 });
    } catch (error) {
      if (!(error instanceof RametError)) throw error;
      gone = error.status === 0;
      const later = call.method === "POST" ? [429] : [409, 429, 503];
      if (!fate.open && !gone && !later.includes(error.status)) return undefined;
      if (Date.now() > limit) return undefined;
    }
    await new Promise<void>((resolve) => {
      const timer: unknown = setTimeout(resolve, waitMs);
      // A program that has nothing else to do does not wait for a server that is gone.
      if (gone) (timer as { unref?: () => void }).unref?.();
    });
  }
}
