# SPDX-License-Identifier: Apache-2.0
"""What the tests here share: the rig of tests/e2e/cli, and the API's document as the server gives it."""
import http.client
import json
import os
import re
import subprocess
import sys
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
TREE = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(TREE, "tests/e2e/cli"))

import rig       # noqa: E402
import schema    # noqa: E402


class Document:
    def __init__(self, document):
        self.document = document
        self.schemas = document["components"]["schemas"]
        self.codes = document["x-error-codes"]

    def calls(self):
        """("GET", "/v1/x/{name}", operation) for each."""
        for path, item in self.document["paths"].items():
            for method, operation in item.items():
                yield method.upper(), path, operation

    def operation(self, method, path):
        return self.document["paths"][path][method.lower()]

    def find(self, method, path):
        """(pattern, operation) of a request's path; whole words go before parameters. None when there is none."""
        path = path.split("?")[0]
        fits = [pattern for pattern in self.document["paths"] if method.lower() in self.document["paths"][pattern] and
                re.fullmatch(re.sub(r"{\w+}", "[^/]+", re.escape(pattern).replace(r"\{", "{").replace(r"\}", "}")), path)]
        if not fits:
            return None
        best = min(fits, key=lambda pattern: pattern.count("{"))
        return best, self.operation(method, best)

    def faults(self, part, value, closed=True):
        return schema.faults(part, value, self.schemas, closed)

    @staticmethod
    def body_schema(operation):
        content = operation.get("requestBody", {}).get("content", {})
        return content.get("application/json", {}).get("schema")

    @staticmethod
    def parameters(operation, place):
        return {part["name"]: part for part in operation.get("parameters", []) if part["in"] == place}

    def answer_faults(self, method, path, answer):
        """What is wrong with an answer that came, in the eyes of the document."""
        found = self.find(method, path)
        if found is None:
            return [f"{method} {path}: the document has no such call"]
        pattern, operation = found
        said = operation["responses"].get(str(answer.status))
        where = f"{method} {pattern} -> {answer.status}"
        if said is None:
            return [f"{where}: the document has no such status: {answer.body[:300]!r}"]
        faults = [f"{where}: the header {name} is missing" for name, header in said.get("headers", {}).items()
                  if header.get("required") and name not in answer.headers]
        content = said.get("content")
        kind = answer.headers.get("Content-Type")
        if content is None:
            return faults + ([f"{where}: a body of {kind}"] if answer.body else [])
        if kind not in content:
            return faults + [f"{where}: the content is {kind}, not {' or '.join(content)}"]
        if kind == "application/json":
            faults += [f"{where}: {fault}" for fault in self.faults(content[kind]["schema"], answer.json)]
        if kind == "text/event-stream":
            faults += self.event_faults(where, content[kind]["schema"]["oneOf"], answer.body)
        return faults

    def refusal_faults(self, method, path, answer, status, code, says=""):
        """What is wrong with an answer that should be an error of this status and code, in these words."""
        if answer.status != status or answer.headers.get("Content-Type") != "application/json":
            return [f"{method} {path} -> {answer.status} {answer.body[:300]!r}, not {status} {code}"]
        faults = self.answer_faults(method, path, answer) if self.find(method, path) else []
        error, headers = answer.json["error"], answer.headers
        retry = str(error.get("retry_after_secs"))
        for right, words in (
                (error["code"] == code, f"the code is not {code}"),
                (re.search(says, error["message"]), f"the message does not say {says!r}"),
                (answer.json["message"] == error["message"], "the two messages differ"),
                (error["request_id"] == headers.get("X-Request-Id"), f"the header has another request id: {headers}"),
                (error["details"]["retryable"] == bool(self.codes[code].get("retryable")), "whether it is retryable differs"),
                (retry == headers.get("Retry-After", "None"), f"Retry-After is {headers.get('Retry-After')}"),
                (error["details"]["retryable"] == ("retry_after_secs" in error), "only what is retryable says when")):
            if not right:
                faults.append(f"{method} {path} -> {answer.body[:400]!r}: {words}")
        return faults

    def event_faults(self, where, shapes, body):
        known = {shape["properties"]["event"]["const"]: shape["properties"]["data"]["contentSchema"] for shape in shapes}
        faults = []
        for block in body.decode().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
            if not fields:
                continue
            if fields.get("event") not in known:
                faults.append(f"{where}: the document has no event {fields.get('event')!r}")
                continue
            faults += [f"{where}: event {fields['event']}: {fault}"
                       for fault in self.faults(known[fields["event"]], json.loads(fields["data"]))]
        return faults


def server_routes():
    """{("GET", "/v1/x"): {flags}} as the server's own table has them."""
    text = subprocess.run([rig.BIN + "/rametd", "--routes"], check=True, capture_output=True, text=True).stdout
    return {tuple(line.split()[:2]): set(line.split()[2:]) for line in text.splitlines()}


def upgrade_headers(operation):
    """The headers without which a call of a WebSocket is none."""
    needed = Document.parameters(operation, "header")
    values = {"Upgrade": needed.get("Upgrade", {}).get("schema", {}).get("const"), "Sec-WebSocket-Version": "13",
              "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
    return {name: values[name] for name in needed if needed[name].get("required") and name in values}


def call_url(url, method, path, body=None, headers=None):
    """One call by TCP."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=rig.HANG_SECS)
    if body is not None and not isinstance(body, (bytes, str)):
        body = json.dumps(body)
    try:
        connection.request(method, path, body, headers or {})
        response = connection.getresponse()
        return rig.Answer(response.status, response.headers, response.read())
    finally:
        connection.close()


def source(*names):
    """The text of source files below the tree."""
    for name in names:
        with open(os.path.join(TREE, name), encoding="utf-8") as file:
            yield name, file.read()


def example_path(pattern):
    """A path of things that are not there."""
    return re.sub(r"{(\w+)}", lambda match: {"port": "80", "part": "disk"}.get(match.group(1), "nothing"), pattern)
