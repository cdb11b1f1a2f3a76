// SPDX-License-Identifier: Apache-2.0
/// <reference lib="esnext.disposable" preserve="true" />
export { Ramet, type Transfer } from "./client.js";
export { type FileData } from "./client_files.js";
export { CodeContext, CodeError, Execution, Result, type RunOptions } from "./code.js";
export { RametError } from "./errors.js";
export { type Candidate, type ExploreOptions, type ExploreResult, type Outcome } from "./explore.js";
export { type PortConnection } from "./port.js";
export { Pty, type PtyEnd, type PtyRequest } from "./pty.js";
export {
  type ClientOption, CommandError, type CommandResult, type CreateOptions, type ExecOptions, Sandbox,
} from "./sandbox.js";
export { type FileInfo, SandboxFiles } from "./sandbox_files.js";
export { type SseEvent, SseParser } from "./sse.js";
export { EventStream, type StreamEvent, type StreamOptions } from "./stream.js";
export { type CallOptions, DEFAULT_URL, type RametOptions } from "./transport.js";
export type * as wire from "./types.js";
