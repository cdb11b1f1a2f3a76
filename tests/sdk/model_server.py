# SPDX-License-Identifier: Apache-2.0
"""A model that says what a script tells it to: POST /v1/responses and /v1/chat/completions, streamed and not.

For tests of agents without a model or a network. As a module: `with ModelServer(script) as model:` and `model.base_url`,
`model.requests`. As a program it prints its base address and serves until its standard input ends:

    model_server.py [SCRIPT.json]         then OPENAI_BASE_URL=<what it printed> OPENAI_API_KEY=any

GET /requests answers what it was asked so far ([{"path","body"}]), POST /script replaces the script and forgets the requests.

A script is a list of steps, or an object of such lists: that whose name occurs in the first user message is taken. A step is
    {"call": TOOL, "arguments": {...}}                  one tool call, or {"calls": [{"call","arguments"}...]} several at once
    {"say": TEXT}                                       "{output}" in it stands for what the last tool gave
    {"match": REGEX, "then": STEP, "else": STEP}        by the last tool's output
    {"error": STATUS, "message": TEXT}                  an HTTP error
Which step is next is read from the request alone (how many tool outputs and answers it holds), so several conversations may run at
once, and a conversation that goes on with a new user message goes on in the script.
"""
import http.server
import json
import re
import sys
import threading

PIECE = 7    # characters of a streamed delta


class Seen:
    """What a request shows the model, in either API: texts of the user, outputs of tools, answers of its own."""

    def __init__(self, path, body):
        self.user, self.outputs, self.answers = [], [], 0
        if path.endswith("/responses"):
            items = body.get("input", [])
            if isinstance(items, str):
                items = [{"role": "user", "content": items}]
            for item in items:
                if item.get("type") == "function_call_output":
                    self.outputs.append(text_of(item.get("output")))
                elif item.get("role") == "user":
                    self.user.append(text_of(item.get("content")))
                elif item.get("role") == "assistant":
                    self.answers += 1
        else:
            for message in body.get("messages", []):
                if message["role"] == "tool":
                    self.outputs.append(text_of(message.get("content")))
                elif message["role"] == "user":
                    self.user.append(text_of(message.get("content")))
                elif message["role"] == "assistant" and not message.get("tool_calls"):
                    self.answers += 1

    @property
    def last(self):
        return self.outputs[-1] if self.outputs else ""


def text_of(content):
    if isinstance(content, list):
        return "".join(part.get("text", "") for part in content)
    return content if isinstance(content, str) else json.dumps(content)


def calls_of(step):
    return step["calls"] if "calls" in step else [step] if "call" in step else []


def branches(step):
    """A step and what it may become."""
    if "match" in step:
        return branches(step["then"]) + branches(step["else"])
    return [step]


def next_step(script, seen):
    """The first step that the request holds no trace of, and its number."""
    if isinstance(script, dict):
        first = seen.user[0] if seen.user else ""
        script = next((steps for name, steps in script.items() if name in first), None)
        if script is None:
            raise LookupError(f"no part of the script is for {first[:200]!r}")
    outputs, answers = len(seen.outputs), seen.answers
    for number, step in enumerate(script):
        ends = branches(step)
        if calls_of(ends[0]):
            wanted = len(calls_of(ends[0]))
            if outputs < wanted:
                return number, resolve(step, seen)
            outputs -= wanted
        elif answers == 0:
            return number, resolve(step, seen)
        else:
            answers -= 1
    raise LookupError(f"the script has {len(script)} steps, and the conversation goes on after the last one")


def resolve(step, seen):
    while "match" in step:
        step = step["then"] if re.search(step["match"], seen.last) else step["else"]
    return step


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, value):
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        # The agents' client keeps a connection over event loops, where it cannot be used: leave it none.
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        if self.path == "/requests":
            return self.reply(200, self.server.model.requests)
        return self.reply(404, {"error": {"message": f"{self.path} is not served here", "type": "invalid_request_error"}})

    def do_POST(self):
        model = self.server.model
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        if self.path == "/script":
            model.script, model.requests = body, []
            return self.reply(200, {})
        if self.path not in ("/v1/responses", "/v1/chat/completions"):
            return self.reply(404, {"error": {"message": f"{self.path} is not served here", "type": "invalid_request_error"}})
        model.requests.append({"path": self.path, "body": body})
        seen = Seen(self.path, body)
        try:
            number, step = next_step(model.script, seen)
        except LookupError as error:
            return self.reply(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
        if "error" in step:
            return self.reply(step["error"], {"error": {"message": step.get("message", "as the script says"), "type": "server_error"}})
        tag = f"{len(model.requests)}_{number}"
        step = {**step, "say": step["say"].replace("{output}", seen.last)} if "say" in step else step
        if self.path == "/v1/responses":
            return self.answer_responses(body, step, tag)
        return self.answer_chat(body, step, tag)

    # ---- Responses ----

    def answer_responses(self, body, step, tag):
        items = [{"type": "function_call", "id": f"fc_{tag}_{n}", "call_id": f"call_{tag}_{n}", "name": call["call"],
                  "arguments": json.dumps(call.get("arguments", {})), "status": "completed"}
                 for n, call in enumerate(calls_of(step))]
        if "say" in step:
            items.append({"type": "message", "id": f"msg_{tag}", "role": "assistant", "status": "completed",
                          "content": [{"type": "output_text", "text": step["say"], "annotations": []}]})
        response = {"id": f"resp_{tag}", "object": "response", "created_at": 1700000000, "status": "completed",
                    "model": body.get("model", "scripted"), "output": items, "parallel_tool_calls": True,
                    "tool_choice": body.get("tool_choice") or "auto", "tools": body.get("tools") or [], "error": None,
                    "incomplete_details": None, "instructions": body.get("instructions"), "metadata": {},
                    "temperature": None, "top_p": None,
                    "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15,
                              "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                              "output_tokens_details": {"reasoning_tokens": 0}}}
        if not body.get("stream"):
            return self.reply(200, response)
        self.begin_stream()
        self.number = 0
        self.event("response.created", response={**response, "status": "in_progress", "output": [], "usage": None})
        for index, item in enumerate(items):
            self.stream_item(index, item)
        self.event("response.completed", response=response)
        return None

    def stream_item(self, index, item):
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            self.event("response.output_item.added", output_index=index, item={**item, "arguments": "", "status": "in_progress"})
            for begin in range(0, len(item["arguments"]), PIECE):
                self.event("response.function_call_arguments.delta", **place, delta=item["arguments"][begin:begin + PIECE])
            self.event("response.function_call_arguments.done", **place, arguments=item["arguments"], name=item["name"])
        else:
            self.event("response.output_item.added", output_index=index, item={**item, "content": [], "status": "in_progress"})
            part = item["content"][0]
            place["content_index"] = 0
            self.event("response.content_part.added", **place, part={**part, "text": ""})
            for begin in range(0, len(part["text"]), PIECE):
                self.event("response.output_text.delta", **place, delta=part["text"][begin:begin + PIECE], logprobs=[])
            self.event("response.output_text.done", **place, text=part["text"], logprobs=[])
            self.event("response.content_part.done", **place, part=part)
        self.event("response.output_item.done", output_index=index, item=item)

    # ---- Chat Completions ----

    def answer_chat(self, body, step, tag):
        calls = [{"id": f"call_{tag}_{n}", "type": "function",
                  "function": {"name": call["call"], "arguments": json.dumps(call.get("arguments", {}))}}
                 for n, call in enumerate(calls_of(step))]
        text, reason = step.get("say"), "tool_calls" if calls else "stop"
        head = {"id": f"chatcmpl_{tag}", "created": 1700000000, "model": body.get("model", "scripted")}
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        if not body.get("stream"):
            message = {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}
            return self.reply(200, {**head, "object": "chat.completion", "usage": usage,
                                    "choices": [{"index": 0, "message": message, "finish_reason": reason}]})
        self.begin_stream()
        head["object"] = "chat.completion.chunk"
        self.chunk(head, {"role": "assistant"})
        for begin in range(0, len(text or ""), PIECE):
            self.chunk(head, {"content": text[begin:begin + PIECE]})
        for index, call in enumerate(calls):
            arguments = call["function"]["arguments"]
            self.chunk(head, {"tool_calls": [{"index": index, **call, "function": {**call["function"], "arguments": ""}}]})
            for begin in range(0, len(arguments), PIECE):
                piece = {"index": index, "function": {"arguments": arguments[begin:begin + PIECE]}}
                self.chunk(head, {"tool_calls": [piece]})
        self.chunk(head, {}, reason)
        if (body.get("stream_options") or {}).get("include_usage"):
            self.data({**head, "choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def chunk(self, head, delta, reason=None):
        self.data({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]})

    # ---- streams ----

    def begin_stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True

    def data(self, value, kind=None):
        self.wfile.write((f"event: {kind}\n" if kind else "").encode() + b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()

    def event(self, kind, **fields):
        self.data({"type": kind, "sequence_number": self.number, **fields}, kind)
        self.number += 1


class ModelServer:
    """Serves a script in a thread until it is closed."""

    def __init__(self, script=()):
        self.script = script
        self.requests = []
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.model = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def base_url(self):
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # ---- what the model was shown ----

    def shown(self, number=-1):
        return Seen(self.requests[number]["path"], self.requests[number]["body"])


def main():
    script = []
    if len(sys.argv) > 1:
        with open(sys.argv[1], encoding="utf-8") as file:
            script = json.load(file)
    with ModelServer(script) as model:
        print(model.base_url, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
