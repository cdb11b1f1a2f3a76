# SPDX-License-Identifier: Apache-2.0
"""Writes a TypeScript file that compiles only when the SDK's types and methods are those of the API's own description.

usage: surface.py OPENAPI.json OUT.ts

Of each answer: what the server says fits the SDK's type, and no field of it is missing there. Of each body: every field can
be given. Of each call: the method that it has, and each parameter of its query among what the method takes.
"""
import json
import re
import sys

# The SDK's name of what the description calls otherwise.
NAMES = {"Execution": "ExecutionData", "CommandResult": "ExecResult", "Result": "ResultData", "Fork": "ForkResult", "Done": "ExecutionEnd",
         "ExitEvent": "ExecEnd", "MemoryUse": "SandboxMemory", "NewDisk": "DiskRequest", "Map": "VolumeMap", "Env": "Environment",
         "State": "SandboxState"}
# Parts that are written out where they are used.
WITHOUT_TYPE = {"AutoStart", "ContextId", "Cpus", "DiskBytes", "DiskGb", "Encoding", "Error", "Event", "EventHead", "Flag", "GuestPath", "JobOutput",
                "Language", "LimitSecs", "LogEvent", "MemoryMb", "Name", "Offset", "OnTimeout", "OutputEvent", "Owner", "PathEvent", "RequestId",
                "SandboxName", "Size", "StreamError", "Text", "TimeoutSecs"}
LIFE_EVENTS = {"StateEvent", "TroubleEvent", "RenamedEvent", "SnapshotEvent", "ForkedEvent", "PlainEvent"}
# Types that stand for one part of the description and leave the rest of it open on purpose.
OPEN = {"Store", "GapEvent"}
# The method of each call, and which of its parameters takes body and query (from 0). Where they are not one object: None, and why.
METHODS = {
    "POST /v1/sandboxes": ("createSandboxes", 0), "GET /v1/sandboxes": ("listSandboxes", 0), "PATCH /v1/sandboxes/{name}": ("updateSandbox", 1),
    "POST /v1/sandboxes/{name}/stop": ("stopSandbox", 1), "POST /v1/sandboxes/{name}/start": ("startSandbox", 1),
    "POST /v1/sandboxes/{name}/restore": ("restoreSandbox", 1), "POST /v1/sandboxes/{name}/promote": ("promoteSandbox", 1),
    "POST /v1/sandboxes/{name}/snapshots": ("snapshot", 1), "POST /v1/sandboxes/{name}/fork": ("forkSandbox", 1),
    "GET /v1/sandboxes/{name}/logs": ("sandboxLogs", 1), "POST /v1/sandboxes/{name}/exec": ("exec", 1),
    "POST /v1/sandboxes/{name}/exec/stream": ("execStream", 1), "POST /v1/sandboxes/{name}/jobs": ("startJob", 1),
    "GET /v1/sandboxes/{name}/jobs/{id}": ("waitJob", 2), "DELETE /v1/sandboxes/{name}/jobs/{id}": ("deleteJob", 2),
    "POST /v1/sandboxes/{name}/jobs/{id}/signal": ("signalJob", 2), "GET /v1/sandboxes/{name}/jobs/{id}/logs": ("jobLogs", 2),
    "GET /v1/sandboxes/{name}/exec/pty": ("openPty", 1), "PUT /v1/sandboxes/{name}/files/content": ("writeFile", 3),
    "DELETE /v1/sandboxes/{name}/files/content": ("deleteFile", 2), "GET /v1/sandboxes/{name}/files/watch": ("watchFiles", 2),
    "POST /v1/sandboxes/{name}/contexts": ("createContext", 1), "POST /v1/sandboxes/{name}/contexts/{id}/interrupt": ("interruptContext", 2),
    "POST /v1/sandboxes/{name}/contexts/{id}/run": ("runCode", 2), "POST /v1/sandboxes/{name}/contexts/{id}/run/stream": ("runCodeStream", 2),
    "POST /v1/keys": ("createKey", 0), "GET /v1/snapshots/{name}": ("getSnapshot", 1), "PATCH /v1/snapshots/{name}": ("updateSnapshot", 1),
    "POST /v1/store/gc": ("storeGc", 0), "POST /v1/store/import": ("importArchive", 1), "POST /v1/templates": ("createTemplate", 0),
    "GET /v1/templates/builds/{id}/logs": ("buildLogs", 1), "POST /v1/sandboxes/{name}/urls": ("createUrl", 1), "GET /v1/volumes": ("listVolumes", 0),
    "POST /v1/volumes": ("createVolume", 0), "PATCH /v1/volumes/{name}": ("updateVolume", 1), "POST /v1/volumes/{name}/snapshots": ("snapshotVolume", 1),
    "PUT /v1/volumes/{name}/content": ("writeVolume", 2), "POST /v1/imports": ("openImport", 0), "POST /v1/exports": ("openExport", 0),
}
# Given as plain parameters, by other methods, or by all: path, from, to, names; follow.
ELSEWHERE = {"path", "follow", "wait_secs"}
PLAIN = {"POST /v1/sandboxes/{name}/files/move", "PUT /v1/environment", "PATCH /v1/environment", "POST /v1/store/export", "POST /v1/volumes/{name}/fork", "GET /v1/volumes/{name}/diff"}


def camel(name):
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


def key(name):
    return name if re.fullmatch(r"\w+", name) else json.dumps(name)


class Writer:
    def __init__(self, document):
        self.schemas = document["components"]["schemas"]
        self.paths = document["paths"]

    def type_of(self, part):
        if "$ref" in part:
            return "api." + part["$ref"].split("/")[-1]
        if "const" in part:
            return json.dumps(part["const"])
        if "enum" in part:
            return " | ".join(json.dumps(value) for value in part["enum"])
        # What a body must have of several fields is said by oneOf beside properties: the fields alone are looked at here.
        if "properties" not in part:
            for word, between in (("allOf", " & "), ("anyOf", " | "), ("oneOf", " | ")):
                if word in part:
                    return between.join(f"({self.type_of(each)})" for each in part[word])
        kinds = part.get("type", [])
        kinds = kinds if isinstance(kinds, list) else [kinds]
        return " | ".join(self.plain(kind, part) for kind in kinds) if kinds else "unknown"

    def plain(self, kind, part):
        if kind == "array":
            return f"({self.type_of(part.get('items', {}))})[]"
        if kind == "object":
            more = part.get("additionalProperties")
            if "properties" not in part:
                return f"Record<string, {self.type_of(more) if isinstance(more, dict) else 'unknown'}>"
            return "{ " + "".join(self.field(name, each, name in part.get("required", [])) for name, each in part["properties"].items()) + "}"
        return {"integer": "number", "number": "number", "boolean": "boolean", "string": "string", "null": "null"}[kind]

    def field(self, name, part, required):
        text = self.type_of(part)
        if name == "created_at":    # null only of what an earlier version wrote down
            text = text.replace(" | null", "")
        return f"{key(name)}{'' if required else '?'}: {text}; "

    def lines(self):
        yield 'import { type Ramet, type wire } from "@ramet/sdk";'
        yield "declare namespace api {"
        for name, part in self.schemas.items():
            yield f"  type {name} = {self.type_of(part)};"
        yield "}"
        yield "type Fits<Said extends Type, Type> = Said;"
        yield "type KeysOf<T> = T extends unknown ? keyof T : never;"
        yield "type Nothing<Missing extends never> = Missing;"
        yield "type Given<Method extends (...all: never[]) => unknown, At extends number> = Exclude<Parameters<Method>[At], string | undefined>;"
        known = {}
        for name in self.schemas:
            if name not in WITHOUT_TYPE:
                known[name] = "LifeEvent" if name in LIFE_EVENTS | {"GapEvent"} else NAMES.get(name, name)
        for number, (name, mine) in enumerate(sorted(known.items())):
            if name not in OPEN and name not in ("NewDisk",):
                yield f"export type Answer{number} = Fits<api.{name}, wire.{mine}>;"
            if name not in OPEN:
                yield f"export type Fields{number} = Nothing<Exclude<KeysOf<api.{name}>, KeysOf<wire.{mine}>>>;"
        yield from self.calls()

    def calls(self):
        number = 0
        for path, item in self.paths.items():
            for method, call in item.items():
                route = f"{method.upper()} {path}"
                body = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
                fields = sorted(body.get("properties", {}))
                fields += [camel(part["name"]) if part["name"] in ("tail_bytes", "size_bytes") else part["name"]
                           for part in call.get("parameters", []) if part["in"] == "query" and part["name"] not in ELSEWHERE]
                if not fields or route in PLAIN or "{part}" in path:
                    continue
                if route not in METHODS:
                    raise SystemExit(f"{route} takes {', '.join(fields)}: say in METHODS which method gives them")
                name, at = METHODS[route]
                number += 1
                yield (f"export type Call{number} = Nothing<Exclude<{' | '.join(json.dumps(field) for field in fields)}, "
                       f"KeysOf<Given<Ramet[{json.dumps(name)}], {at}>>>>; // {route}")


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        document = json.load(file)
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write("\n".join(Writer(document).lines()) + "\n")


if __name__ == "__main__":
    main()
