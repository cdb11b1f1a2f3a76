// SPDX-License-Identifier: Apache-2.0
// What goes wrong. One class for all: the server's sentence, its code, and whether to try again. What a caller's
// AbortSignal ended is thrown as the signal's own reason (an AbortError), as `fetch` does.

/** Codes that begin with `client.` come from here; all others from the server (API.md lists them). */
export class RametError extends Error {
  /** HTTP status; 0 when there was no answer. */
  readonly status: number;
  /** For example `sandbox.not_found`, `capacity.memory`, `client.network`. */
  readonly code: string;
  /** Of the answer; stands in the server's log too. */
  readonly requestId: string | undefined;
  /** The server says that the same call may succeed later. */
  readonly retryable: boolean;
  readonly retryAfterSecs: number | undefined;
  readonly details: Readonly<Record<string, unknown>>;

  constructor(
    message: string,
    parts: {
      status?: number;
      code: string;
      requestId?: string | undefined;
      retryable?: boolean;
      retryAfterSecs?: number | undefined;
      details?: Record<string, unknown>;
      cause?: unknown;
    },
  ) {
    super(message, parts.cause === undefined ? undefined : { cause: parts.cause });
    this.name = "RametError";
    this.status = parts.status ?? 0;
    this.code = parts.code;
    this.requestId = parts.requestId;
    this.retryable = parts.retryable ?? false;
    this.retryAfterSecs = parts.retryAfterSecs;
    this.details = parts.details ?? {};
  }

  /** There is no such thing (404). */
  get isNotFound(): boolean {
    return this.status === 404;
  }
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function text(value: unknown): string | undefined {
  return typeof value === "string" ? value : undefined;
}

function seconds(value: unknown): number | undefined {
  const number = typeof value === "string" && value.trim() !== "" ? Number(value) : value;
  return typeof number === "number" && Number.isFinite(number) && number >= 0 ? number : undefined;
}

/** The error that an answer with status 400 and above is. */
export function errorOfAnswer(status: number, headers: Headers, body: string): RametError {
  let parsed: Record<string, unknown> = {};
  try {
    parsed = record(JSON.parse(body));
  } catch {
    // Not from Ramet: a proxy's page, perhaps. Its beginning is shown.
  }
  const error = record(parsed["error"]);
  const details = record(error["details"]);
  const shown = body.length > 300 ? body.slice(0, 300) + "..." : body;
  return new RametError(
    text(error["message"]) ?? text(parsed["message"]) ??
      (shown.trim() === "" ? `the server answered ${status} without words` : `the server answered ${status}: ${shown}`),
    {
      status,
      code: text(error["code"]) ?? `http.${status}`,
      requestId: text(error["request_id"]) ?? headers.get("x-request-id") ?? undefined,
      retryable: details["retryable"] === true,
      retryAfterSecs:
        seconds(details["retry_after_secs"]) ?? seconds(error["retry_after_secs"]) ?? seconds(headers.get("retry-after")),
      details,
    },
  );
}

/** The error that ends a stream: an event `error` or `failed` with `code message request_id`. The status is the code's. */
export function errorOfEvent(data: unknown): RametError {
  const fields = record(data);
  const code = text(fields["code"]) ?? "client.protocol";
  const kinds: Record<string, number> = { capacity: 503, validation: 400, auth: 403, internal: 500, client: 0 };
  return new RametError(text(fields["message"]) ?? "the stream ended with an error that has no words", {
    status: kinds[code.split(".")[0] ?? ""] ?? (code.endsWith(".not_found") ? 404 : 409),
    code,
    requestId: text(fields["request_id"]),
    retryable: fields["retryable"] === true,
    retryAfterSecs: seconds(fields["retry_after_secs"]),
  });
}
