# SPDX-License-Identifier: Apache-2.0
"""GET /openapi.json and the server agree: calls, flags, query parameters, fields, error codes, examples; and so does API.md."""
import glob
import os
import re
import subprocess
import sys
import tempfile
import unittest

import contract
import rig
import schema

WORDS = ("not_found", "conflict", "invalid_state", "ended", "unsupported")    # of http_route_status


class DocumentTest(rig.Case):
    @classmethod
    def setUpClass(cls):
        cls.routes = contract.server_routes()

    def setUp(self):
        super().setUp()
        answer = self.daemon.call("GET", "/openapi.json")
        self.assertEqual((answer.status, answer.headers["Content-Type"]), (200, "application/json"))
        self.document = contract.Document(answer.json)

    def test_same_calls_and_flags(self):
        self.assertEqual(self.document.document["openapi"], "3.1.0")
        said = {(method, path): set(operation["x-ramet-access"].split()) for method, path, operation in self.document.calls()}
        self.assertEqual(sorted(set(self.routes) - set(said)), [], "these calls are not in vmglue/openapi")
        self.assertEqual(sorted(set(said) - set(self.routes)), [], "these calls of vmglue/openapi do not exist")
        for call, flags in said.items():
            self.assertEqual(flags, self.routes[call] - {"stream"},
                             f"{' '.join(call)}: \"access\" in vmglue/openapi is not what the route's flags say")

    def test_query_parameters(self):
        """A parameter that nobody knows is refused, with a list of those that are known: the document's."""
        for method, path, operation in self.document.calls():
            with self.subTest(call=f"{method} {path}"):
                answer = self.daemon.call(method, contract.example_path(path) + "?no-such-parameter=1", headers=contract.upgrade_headers(operation))
                self.assertEqual((answer.status, answer.code), (400, "validation.invalid"), answer.body)
                known = re.search(r'unknown query parameter "no-such-parameter".*?knows: (.*)$', answer.message)
                self.assertIsNotNone(known, answer.message)
                names = [] if known[1] == "no parameters at all" else known[1].split(", ")
                self.assertEqual(sorted(names), sorted(self.document.parameters(operation, "query")))

    def test_body_fields(self):
        for method, path, operation in self.document.calls():
            body = self.document.body_schema(operation)
            if body is None:
                continue
            with self.subTest(call=f"{method} {path}"):
                answer = self.daemon.call(method, contract.example_path(path), {"no_such_field": 1})
                self.assertEqual((answer.status, answer.code), (400, "validation.invalid"), answer.body)
                known = re.search(r'unknown field "no_such_field"; this call knows: (.*)$', answer.message)
                self.assertIsNotNone(known, answer.message)
                names = [] if known[1] == "no fields at all" else known[1].split(", ")
                self.assertEqual(sorted(names), sorted(body["properties"]))

    def test_error_codes(self):
        """Each code of the source is in the document, and each of the document can come from the source."""
        files = [os.path.relpath(path, contract.TREE) for part in ("vmglue/*.c", "tools/rametd/*.c")
                 for path in glob.glob(os.path.join(contract.TREE, part)) if not os.path.basename(path).startswith(("sandbox_steps", "alias_"))]
        literal, kinds = set(), set()
        for name, text in contract.source(*files):
            for code in re.findall(r'"([a-z_]+\.[a-z_]+)"', text):
                if code.split(".")[0] in CLASSES and not code.endswith((".sock", ".json", ".log")):
                    literal.add(code)
            kinds |= set(re.findall(r'http_(?:reply_failure|route_status)\((?:[^;"]*?)"([a-z_]+)"', text))
            kinds |= set(re.findall(r'reply\(request,[^;]*?"([a-z_]+)", &err\)', text))
            kinds |= set(re.findall(r'-ENOENT \? "([a-z_]+)"', text))
        said = set(self.document.codes)
        self.assertEqual(sorted(literal - said), [], "these error codes are not in vmglue/openapi/errors.json")
        possible = literal | {f"{kind}.{word}" for kind in kinds for word in WORDS}
        self.assertEqual(sorted(said - possible), [], "these error codes of vmglue/openapi cannot occur")
        used = {code for code, what in self.document.codes.items() if what.get("only_in") in self.document.schemas}
        used |= {code for _, _, operation in self.document.calls() for code in codes_of(operation)}
        self.assertEqual(sorted(said - used), [], "these error codes are no call's")

    def test_examples(self):
        count = 0
        for method, path, operation in self.document.calls():
            parts = list(operation.get("requestBody", {}).get("content", {}).values())
            for response in operation["responses"].values():
                parts += response.get("content", {}).values()
            for part in parts:
                for example in part.get("examples", {}).values():
                    count += 1
                    self.assertEqual(self.document.faults(part["schema"], example["value"]), [], f"{method} {path}")
        self.assertGreater(count, 40)

    def test_schemas_are_used(self):
        text = self.daemon.call("GET", "/openapi.json").body.decode()
        for name in self.document.schemas:
            self.assertIn(f'"#/components/schemas/{name}"', text, f"no call uses the schema {name}")

    def test_api_md_names_the_same_calls(self):
        named = documented_calls(next(contract.source("vmglue/API.md"))[1])
        missing = [call for call in self.routes if not any(fits(entry, call) for entry in named)]
        self.assertEqual(missing, [], "vmglue/API.md does not name these calls")

    def test_api_md_names_the_same_fields(self):
        """Each parameter and field of a call in the chapter that has the call, each field of an answer anywhere."""
        text = next(contract.source("vmglue/API.md"))[1]
        chapters = [(documented_calls(chapter), words_of(chapter)) for chapter in re.split(r"(?m)^(?=## )", text)]
        anywhere = words_of(text)
        missing = []
        for method, path, operation in self.document.calls():
            near = set().union(*(words for calls, words in chapters if any(fits(entry, (method, path)) for entry in calls)))
            asked = set(self.document.parameters(operation, "query")) | set((self.document.body_schema(operation) or {}).get("properties", {}))
            missing += [f"{method} {path}: {name}" for name in sorted(asked - near)]
            for response in operation["responses"].values():
                for part in response.get("content", {}).values() if path != "/openapi.json" else ():
                    shapes = part["schema"].get("oneOf", [part["schema"]])
                    answered = set().union(*(self.members(shape.get("properties", {}).get("data", shape)) for shape in shapes))
                    missing += [f"{method} {path} answers: {name}" for name in sorted(answered - anywhere)]
        self.assertEqual(sorted(set(missing)), [], "vmglue/API.md does not name these")

    def members(self, shape):
        """The names of an object's members and of those below it."""
        shape = schema.Checker(self.document.schemas, True).resolve(shape)
        found = set(shape.get("properties", {}))
        below = [*shape.get("properties", {}).values(), *(shape[word] for word in ("items", "contentSchema") if word in shape)]
        below += [part for word in ("allOf", "anyOf", "oneOf") for part in shape.get(word, [])]
        return found.union(*(self.members(part) for part in below))


def words_of(text):
    """What stands in code spans."""
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", text))))


CLASSES = {"validation", "route", "auth", "quota", "rate_limit", "internal", "capacity", "port", "sandbox", "source", "exec", "job",
           "file", "pty", "context", "snapshot", "template", "build", "upload", "volume", "import", "name", "store", "key", "url",
           "idempotency", "environment", "proxy"}


def codes_of(operation):
    for response in operation["responses"].values():
        for part in response.get("content", {}).values():
            for each in part["schema"].get("allOf", []):
                yield from each.get("properties", {}).get("error", {}).get("properties", {}).get("code", {}).get("enum", [])


def documented_calls(text):
    """(method, path) of each call in code spans: "`GET …/{name}` · `/start`", "`GET/PATCH …`"."""
    found = []
    for line in text.splitlines():
        method = None
        for span in re.findall(r"`([^`]+)`", line):
            match = re.match(r"((?:GET|POST|PUT|PATCH|DELETE)(?:/(?:GET|POST|PUT|PATCH|DELETE))*) (\S+)", span)
            if match:
                method = match[1]
                found += [(each, match[2].split("?")[0]) for each in method.split("/")]
    return found


def fits(entry, call):
    """Is it that call? "…" is the sandbox's path; {part} of a volume's path is the word NAME/disk of API.md."""
    method, path = entry
    route = call[1].replace("/{name}/{part}", "/{name}")
    path = path.replace("…", "/v1/sandboxes/{name}")
    plain = re.sub(r"{\w+}", "{}", path)
    return method == call[0] and plain == re.sub(r"{\w+}", "{}", route)


class MergeTest(unittest.TestCase):
    """merge.py: what would be lost or wrong in the document stops the build."""

    def merge(self, text):
        with tempfile.TemporaryDirectory() as folder:
            with open(folder + "/more.json", "w", encoding="utf-8") as file:
                file.write(text)
            fragments = glob.glob(os.path.join(contract.TREE, "vmglue/openapi/*.json"))
            done = subprocess.run([sys.executable, os.path.join(contract.TREE, "vmglue/openapi/merge.py"), "--version", "1", "--json",
                                   folder + "/out.json", "--c", folder + "/out.c", *fragments, folder + "/more.json"],
                                  capture_output=True, text=True)
            return done.returncode, done.stderr

    def test_faults_are_named(self):
        self.assertEqual(self.merge("{}"), (0, ""))
        for text, words in (('{"schemas":{"X":{"optional":{"a":"string"},"optional":{"b":"string"}}}}', '"optional" twice'),
                            ('{"codes":{"auth.missing":{"status":401}}}', "auth.missing is described twice"),
                            ('{"calls":{"GET /x":{"id":"x","summary":"x","access":"","answers":{"200":"NoSuch"}}}}', "NoSuch"),
                            ('{"calls":{"GET /x":{"id":"x","summary":"x","acces":""}}}', "acces")):
            status, said = self.merge(text)
            self.assertEqual(status, 1, text)
            self.assertIn(words, said)


class SchemaTest(unittest.TestCase):
    """The checker itself: what is wrong is found."""

    def test_finds_faults(self):
        shapes = {"N": {"type": "string", "maxLength": 3}}
        bad = [({"type": "integer"}, True), ({"type": "integer"}, "1"), ({"type": ["string", "null"]}, 1), ({"enum": [1]}, True),
               ({"minimum": 2}, 1), ({"exclusiveMinimum": 0}, 0), ({"$ref": "#/components/schemas/N"}, "long"),
               ({"type": "object", "properties": {"a": {"type": "string"}}}, {"a": 1}),
               ({"type": "object", "properties": {"a": {}}}, {"b": 1}), ({"type": "object", "required": ["a"]}, {}),
               ({"type": "array", "items": {"type": "string"}}, ["a", 1]), ({"pattern": "^a$"}, "b"), ({"not": {"const": 1}}, 1),
               ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1), ({"oneOf": [{"type": "string"}, {"maxLength": 5}]}, "a"),
               ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": 1}), ({"format": "date-time"}, "today"),
               ({"contentEncoding": "base64"}, "a"), ({"propertyNames": {"pattern": "^a"}}, {"b": 1})]
        for shape, value in bad:
            self.assertNotEqual(schema.faults(shape, value, shapes), [], (shape, value))

    def test_accepts_what_is_right(self):
        shapes = {"A": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}
        both = {"allOf": [{"$ref": "#/components/schemas/A"}, {"type": "object", "properties": {"b": {"type": "integer"}}}]}
        for shape, value in [(both, {"a": "x", "b": 1}), ({"type": "number"}, 1), ({"type": "object"}, {"any": 1}), ({}, [1]),
                             ({"anyOf": [both, {"type": "null"}]}, None)]:
            self.assertEqual(schema.faults(shape, value, shapes), [])

    def test_refuses_words_it_does_not_know(self):
        with self.assertRaises(AssertionError):
            schema.faults({"multipleOf": 3}, 1, {})


if __name__ == "__main__":
    rig.need_root()
    rig.main()
