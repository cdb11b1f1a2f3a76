# SPDX-License-Identifier: Apache-2.0
"""Makes the OpenAPI document of the fragments in this folder, checked, and the C file that holds it.

usage: merge.py --version VERSION --json OUT.json --c OUT.c FRAGMENT.json...
README.md says what a fragment looks like. A fault is one line that names the fragment and the place; exit 1.
"""
import argparse
import json
import os
import re
import sys

SIMPLE = {
    "string": {"type": "string"}, "boolean": {"type": "boolean"}, "number": {"type": "number"},
    "integer": {"type": "integer"}, "object": {"type": "object"}, "any": {},
    "count": {"type": "integer", "minimum": 0},
    "bytes": {"type": "integer", "minimum": 0, "description": "bytes"},
    "ms": {"type": "number", "minimum": 0, "description": "milliseconds"},
    "time": {"type": "string", "format": "date-time"},
    "strings": {"type": "object", "additionalProperties": {"type": "string"}},
}
CALL_KEYS = {"id", "summary", "description", "access", "path", "query", "headers", "body", "required", "body_rules",
             "raw_body", "answers", "events", "errors", "examples", "upgrade", "answer_headers", "status_examples"}
FRAGMENT_KEYS = {"tag", "description", "calls", "schemas", "codes", "groups", "parameters"}
NO_ZERO = "^[^\\u0000]*$"
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
REQUEST_ID = {"X-Request-Id": {"description": "The same as request_id in an error's body, and in the log.",
                               "required": True, "schema": {"$ref": "#/components/schemas/RequestId"}}}


class Fault(Exception):
    pass


def members(pairs):
    """An object; a name that it has twice would be lost without a word."""
    names = [name for name, _ in pairs]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise Fault(f'an object has the name "{twice}" twice')
    return dict(pairs)


def nullable(schema):
    """The schema that takes null too."""
    if isinstance(schema.get("type"), str) and "enum" not in schema and "const" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    if isinstance(schema.get("type"), list) and "null" in schema["type"] or schema == {}:
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


def expand(schema):
    """Short forms: a word for a simple type, a Name for a shared schema, a ? for what may be null."""
    if isinstance(schema, str):
        if schema.endswith("?"):
            return nullable(expand(schema[:-1]))
        if schema.endswith("[]"):
            return {"type": "array", "items": expand(schema[:-2])}
        if schema in SIMPLE:
            return dict(SIMPLE[schema])
        if not re.fullmatch(r"[A-Z][A-Za-z]+", schema):
            raise Fault(f'"{schema}" is neither a simple type nor the name of a schema')
        return {"$ref": "#/components/schemas/" + schema}
    if not isinstance(schema, dict):
        raise Fault(f"{schema!r} is no schema")
    out = {}
    for key, value in schema.items():
        if key in ("fields", "optional"):
            out.setdefault("type", "object")
            out.setdefault("properties", {}).update({name: expand(part) for name, part in value.items()})
            if key == "fields" and value:
                out["required"] = list(value)
        elif key == "properties":
            out[key] = {name: expand(part) for name, part in value.items()}
        elif key in ("items", "additionalProperties", "not") and not isinstance(value, bool):
            out[key] = expand(value)
        elif key in ("anyOf", "oneOf", "allOf"):
            out[key] = [expand(part) for part in value]
        else:
            out[key] = value
    return out


def without_zero(schema):
    """Text that the server takes holds no zero character (where it may, a pattern or the encoding says what it holds)."""
    out = {key: without_zero(value) if key in ("items", "additionalProperties") and isinstance(value, dict) else value
           for key, value in schema.items()}
    if out.get("pattern") == "":    # says that it may
        del out["pattern"]
    elif out.get("type") in ("string", ["string", "null"]) and not {"pattern", "contentEncoding", "enum"} & set(out):
        out["pattern"] = NO_ZERO
    return out


class Merger:
    def __init__(self):
        self.calls, self.schemas, self.codes, self.groups, self.parameters = {}, {}, {}, {}, {}
        self.tags = []

    def add(self, name, fragment):
        unknown = set(fragment) - FRAGMENT_KEYS
        if unknown:
            raise Fault(f"unknown key {sorted(unknown)[0]}")
        if "tag" in fragment:
            self.tags.append({"name": fragment["tag"], "description": fragment.get("description", "")})
        for call, what in fragment.get("calls", {}).items():
            if call in self.calls:
                raise Fault(f"{call} is described twice")
            self.calls[call] = (name, fragment.get("tag", ""), what)
        for kind in ("schemas", "codes", "groups", "parameters"):
            for key, value in fragment.get(kind, {}).items():
                if key in getattr(self, kind):
                    raise Fault(f"{kind}: {key} is described twice")
                getattr(self, kind)[key] = value

    def codes_of(self, words, seen=()):
        """The codes that a list of codes and groups means, in order."""
        found = []
        for word in words:
            if "." in word:
                if word.split()[0] not in self.codes:
                    raise Fault(f'the error code "{word}" is not in errors.json')
                found.append(word)
            elif word not in self.groups or word in seen:
                raise Fault(f'there is no group of errors "{word}"')
            else:
                found += self.codes_of(self.groups[word], (*seen, word))
        return list(dict.fromkeys(found))

    def error_responses(self, call, what):
        words = ["any", *what.get("errors", [])]
        if what["access"] != "open":
            words.append("gate")
        if "body" in what or "raw_body" in what:
            words.append("body")
        if "creates" in what["access"]:
            words.append("creates")
        if "{" in call:    # a parameter with a slash in it names another path
            words.append("path")
        by_status = {}
        for word in self.codes_of(words):    # a code, or one of its statuses: "validation.too_large 413"
            code, *status = word.split()
            known = self.codes[code]["status"]
            known = known if isinstance(known, list) else [known]
            for each in [int(text) for text in status] or known:
                if each not in known:
                    raise Fault(f"{code} does not come with status {each}")
                codes = by_status.setdefault(str(each), [])
                if code not in codes:
                    codes.append(code)
        answers = {}
        for status, codes in by_status.items():
            headers = dict(REQUEST_ID)
            if any(self.codes[code].get("retryable") for code in codes):
                headers["Retry-After"] = {"description": "Seconds; with errors that are retryable.",
                                          "schema": {"type": "integer", "minimum": 1}}
            if status == "405":
                headers["Allow"] = {"schema": {"type": "string"}, "description": "The methods that the path has."}
            if status == "401":
                headers["WWW-Authenticate"] = {"schema": {"type": "string"}}
            answers[status] = {
                "description": ", ".join(codes),
                "headers": headers,
                "content": {"application/json": {"schema": {"allOf": [
                    {"$ref": "#/components/schemas/Error"},
                    {"type": "object", "properties": {"error": {"type": "object", "properties": {
                        "code": {"enum": codes}}}}}]}}},
            }
        return answers

    def body_of(self, call, what):
        if "raw_body" in what:
            return {"required": False, "content": {what["raw_body"]: {"schema": {}}}}
        required = what.get("required", [])
        properties = {}
        for name, schema in what["body"].items():
            schema = expand(schema)
            schema = without_zero(schema)
            properties[name] = schema if name in required else nullable(schema)
        schema = {"type": "object", "properties": properties, "additionalProperties": False}
        if required:
            schema["required"] = required
        schema.update({key: [expand(part) for part in value] if isinstance(value, list) and key[-2:] == "Of" else value
                       for key, value in what.get("body_rules", {}).items()})
        media = {"schema": schema}
        if "examples" in what:
            media["examples"] = {f"example{i + 1}": {"value": value} for i, value in enumerate(what["examples"])}
        return {"required": bool(required), "content": {"application/json": media}}

    def answers_of(self, call, what):
        answers = {}
        for status, schema in what.get("answers", {}).items():
            answer = {"description": "No body." if schema is None else "Done.", "headers": dict(REQUEST_ID)}
            if isinstance(schema, dict) and "content" in schema:
                answer["content"] = {media: {"schema": expand(part)} for media, part in schema["content"].items()}
            elif schema is not None:
                media = {"schema": expand(schema)}
                if status in what.get("status_examples", {}):
                    media["examples"] = {"example1": {"value": what["status_examples"][status]}}
                answer["content"] = {"application/json": media}
            for name, text in what.get("answer_headers", {}).get(status, {}).items():
                answer["headers"][name] = {"description": text, "schema": {"type": "string"}}
            answers[status] = answer
        if "events" in what:
            answer = answers.setdefault("200", {"description": "Server-sent events.", "headers": dict(REQUEST_ID)})
            answer.setdefault("content", {})["text/event-stream"] = {
                "schema": {"description": "One event of the stream.", "oneOf": [
                    self.event(name, schema) for name, schema in what["events"].items()]}}
        if "upgrade" in what:
            answers["101"] = {"description": what["upgrade"], "headers": dict(REQUEST_ID)}
        return answers

    @staticmethod
    def event(name, schema):
        data = {"type": "string", "contentMediaType": "application/json", "contentSchema": expand(schema)}
        return {"type": "object", "required": ["event", "data"],
                "properties": {"event": {"const": name}, "id": {"type": "string"}, "data": data}}

    def parameters_of(self, call, pattern, what):
        found = []
        for name in re.findall(r"{(\w+)}", pattern):
            part = what.get("path", {}).get(name, self.parameters.get(name))
            if part is None:
                raise Fault(f'the parameter "{name}" is described neither in the call\'s "path" nor in "parameters"')
            found.append({"name": name, "in": "path", "required": True, **self.parameter(part)})
        for place, key in (("query", "query"), ("header", "headers")):
            for name, part in what.get(key, {}).items():
                found.append({"name": name, "in": place, **self.parameter(part)})
        if "creates" in what["access"]:
            found.append({"name": "Idempotency-Key", "in": "header", **self.parameter(self.parameters["Idempotency-Key"])})
        return found

    @staticmethod
    def parameter(part):
        schema = expand(part)
        out = {}
        for key in ("description", "required", "example"):
            if key in schema:
                out[key] = schema.pop(key)
        out["schema"] = without_zero(schema)
        return out

    def call(self, key):
        _, tag, what = self.calls[key]
        method, pattern = key.split(" ")
        unknown = set(what) - CALL_KEYS
        if unknown:
            raise Fault(f"unknown key {sorted(unknown)[0]}")
        if method not in METHODS or not {"id", "summary", "access"} <= set(what):
            raise Fault("a call is METHOD PATH with at least id, summary and access")
        operation = {"operationId": what["id"], "tags": [tag], "summary": what["summary"]}
        if "description" in what:
            operation["description"] = what["description"]
        operation["x-ramet-access"] = what["access"]
        if what["access"] == "open":
            operation["security"] = []
        parameters = self.parameters_of(key, pattern, what)
        if parameters:
            operation["parameters"] = parameters
        if "body" in what or "raw_body" in what:
            operation["requestBody"] = self.body_of(key, what)
        operation["responses"] = {**self.answers_of(key, what), **self.error_responses(key, what)}
        return pattern, method.lower(), operation

    def document(self, version):
        paths, ids = {}, set()
        for key, (name, _, _) in self.calls.items():
            try:
                pattern, method, operation = self.call(key)
            except Fault as fault:
                raise Fault(f"{name}: {key}: {fault}") from None
            if operation["operationId"] in ids:
                raise Fault(f"{name}: {key}: the id {operation['operationId']} is taken")
            ids.add(operation["operationId"])
            paths.setdefault(pattern, {})[method] = operation
        schemas = {}
        for name, schema in self.schemas.items():
            try:
                schemas[name] = expand(schema)
            except Fault as fault:
                raise Fault(f"schema {name}: {fault}") from None
        return {
            "openapi": "3.1.0",
            "info": {"title": "Ramet", "version": version, "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
                     "description": "Virtual machines that are snapshotted and forked while they run. "
                                    "vmglue/API.md is the same in words."},
            "servers": [{"url": "/"}],
            "security": [{"bearer": []}, {"apiKey": []}],
            "tags": self.tags,
            "paths": paths,
            "components": {
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer",
                               "description": "Authorization: Bearer KEY. The unix socket needs no key."},
                    "apiKey": {"type": "apiKey", "in": "header", "name": "X-API-Key"}},
                "schemas": schemas},
            "x-error-codes": self.codes,
        }


def check_references(node, names, where="document"):
    if isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.split("/")[-1] not in names:
            raise Fault(f"{where}: there is no schema {reference.split('/')[-1]}")
        for key, value in node.items():
            check_references(value, names, f"{where}/{key}")
    elif isinstance(node, list):
        for i, value in enumerate(node):
            check_references(value, names, f"{where}/{i}")


def queries_as_c(document):
    """What query parameters each call knows, for the server to refuse others."""
    rows = []
    for path, item in document["paths"].items():
        for method, operation in item.items():
            names = [part["name"] for part in operation.get("parameters", []) if part["in"] == "query"]
            words = "".join(json.dumps(name) + ", " for name in names)
            rows.append(f'{{"{method.upper()}", "{path}", (const char *const[]){{{words}NULL}}}},\n')
    return "\nconst struct openapi_query openapi_queries[] = {\n" + "".join(rows) + "{NULL, NULL, NULL}};\n"


def as_c(text):
    """The text as an array: a string literal of this size is more than a compiler has to take."""
    data = text.encode()
    rows = [",".join(str(byte) for byte in data[i:i + 40]) for i in range(0, len(data), 40)]
    return ('// Made by merge.py of the fragments beside it.\n#include "vmglue/openapi.h"\n\n'
            f"const size_t openapi_document_size = {len(data)};\n"
            "const char openapi_document[] = {\n" + ",\n".join(rows) + "};\n")


def write(path, text):
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", required=True)
    parser.add_argument("--json", required=True)
    parser.add_argument("--c", required=True)
    parser.add_argument("fragments", nargs="+")
    options = parser.parse_args()
    merger = Merger()
    try:
        for path in sorted(options.fragments):
            name = os.path.basename(path)
            try:
                with open(path, encoding="utf-8") as file:
                    merger.add(name, json.load(file, object_pairs_hook=members))
            except (ValueError, Fault) as fault:
                raise Fault(f"{name}: {fault}") from None
        document = merger.document(options.version)
        check_references(document, document["components"]["schemas"])
    except Fault as fault:
        print("vmglue/openapi:", fault, file=sys.stderr)
        return 1
    text = json.dumps(document, ensure_ascii=True, separators=(",", ":"))
    write(options.json, text)
    write(options.c, as_c(text) + queries_as_c(document))
    return 0


if __name__ == "__main__":
    sys.exit(main())
