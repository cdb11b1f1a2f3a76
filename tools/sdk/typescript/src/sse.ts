// SPDX-License-Identifier: Apache-2.0
// Server-sent events (WHATWG HTML, 9.2.6), out of pieces that may be cut anywhere: within a line, between CR and LF,
// within a character. A line may be as long as memory allows; no piece is looked at twice.

/** One event as it was sent. */
export interface SseEvent {
  /** `message` when none was named. */
  event: string;
  data: string;
  /** The last id that was sent, at this event or before; "" when none was. */
  id: string;
}

export class SseParser {
  #decoder = new TextDecoder("utf-8");
  #line: string[] = []; // the line that has not ended
  #afterCr = false; // the last character was CR: an LF now belongs to it
  #data: string[] = [];
  #event = "";
  #id = "";
  #retryMs: number | undefined;

  /** The last id that was sent. */
  get lastId(): string {
    return this.#id;
  }

  /** How long to wait before connecting again, when the server said it. */
  get retryMs(): number | undefined {
    return this.#retryMs;
  }

  /** The events that these bytes complete. What is incomplete at the stream's end is no event. */
  push(bytes: Uint8Array): SseEvent[] {
    const text = this.#decoder.decode(bytes, { stream: true });
    const events: SseEvent[] = [];
    const ends = /[\r\n]/g;
    let start = 0;
    if (this.#afterCr && text.length > 0) {
      this.#afterCr = false;
      if (text.startsWith("\n")) start = 1;
    }
    ends.lastIndex = start;
    for (let end = ends.exec(text); end !== null; end = ends.exec(text)) {
      this.#line.push(text.slice(start, end.index));
      this.#takeLine(this.#line.length === 1 ? this.#line[0]! : this.#line.join(""), events);
      this.#line = [];
      start = end.index + 1;
      if (end[0] === "\r") {
        if (start === text.length) this.#afterCr = true;
        else if (text[start] === "\n") start++;
      }
      ends.lastIndex = start;
    }
    if (start < text.length) this.#line.push(text.slice(start));
    return events;
  }

  #takeLine(line: string, events: SseEvent[]): void {
    if (line === "") {
      if (this.#data.length > 0) {
        events.push({ event: this.#event === "" ? "message" : this.#event, data: this.#data.join("\n"), id: this.#id });
      }
      this.#data = [];
      this.#event = "";
      return;
    }
    const colon = line.indexOf(":");
    if (colon === 0) return; // a comment
    const field = colon < 0 ? line : line.slice(0, colon);
    let value = colon < 0 ? "" : line.slice(colon + 1);
    if (value.startsWith(" ")) value = value.slice(1);
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#event = value;
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    else if (field === "retry" && /^[0-9]+$/.test(value)) this.#retryMs = Number(value);
  }
}
