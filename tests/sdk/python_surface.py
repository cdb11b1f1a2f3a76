# SPDX-License-Identifier: Apache-2.0
"""The Python client against the API's own description: each call has a method, with each parameter of its query; each field of a
body is named in the method's text; what makes something has an Idempotency-Key, and nothing else has."""
import inspect
import json
import os
import re
import unittest
import unittest.mock

import ramet

DOCUMENT = os.path.join(os.environ.get("RAMET_BIN", ""), "../vmglue/openapi.json")
# What is given otherwise than by its own name.
GIVEN_AS = {"from": "from_", "stdin_base64": "stdin"}


class Sent(Exception):
    """In place of sending."""


def dummy(parameter):
    """Something that this parameter takes."""
    kind = str(parameter.annotation)
    for word, value in (("IO[bytes]", b"x"), ("Data", b"x"), ("Mapping", {"a": "b"}), ("Sequence[str]", ["x"]), ("str", "x"), ("bool", True),
                        ("int", 1), ("float", 1.0)):
        if word in kind:
            return value
    raise AssertionError(f"{parameter}: what does it take?")


def sent_by(client, name):
    """(method, path, headers) of each request of a method, called with all that it takes, and once with `follow` off."""
    method, seen = getattr(client, name), []

    def send(self, verb, path, *, headers=None, **_):
        seen.append((verb, path, headers or {}))
        raise Sent

    def upgrade(self, path, headers):
        send(self, "GET", path, headers=headers)
    parameters = inspect.signature(method).parameters
    words = {key: dummy(each) for key, each in parameters.items()
             if each.kind is not each.VAR_KEYWORD and key not in ("body", "idempotency_key", "last_event_id")}
    places = [words.pop(key) for key, each in parameters.items() if each.kind is each.POSITIONAL_ONLY and key in words]
    with unittest.mock.patch.multiple(ramet._Transport, send=send, upgrade=upgrade):
        for more in ({}, {"follow": False}) if "follow" in words else ({},):
            try:
                stream = method(*places, **{**words, **more})
                next(stream)
            except Sent:
                pass
    return seen


@unittest.skipUnless(os.path.exists(DOCUMENT), "RAMET_BIN names no build with the API's description")
class Surface(unittest.TestCase):
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        with open(DOCUMENT, encoding="utf-8") as file:
            cls.paths = json.load(file)["paths"]
        client = ramet.Ramet("http://127.0.0.1:1")
        cls.sent = []    # (method's name, verb, path, query's names, headers)
        for name, method in inspect.getmembers(client, inspect.ismethod):
            if not name.startswith("_") and name not in ("request", "close"):
                for verb, path, headers in sent_by(client, name):
                    path, _, query = path.partition("?")
                    cls.sent.append((name, verb, path, {word.split("=")[0] for word in query.split("&") if word}, headers))

    def calls(self):
        """(route, its description, what was sent of it) for each."""
        for path, item in self.paths.items():
            if "{part}" in path:    # NAME/disk: the same method
                continue
            wanted = re.compile(re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path)))
            for verb, call in item.items():
                found = [each for each in self.sent if each[1] == verb.upper() and wanted.fullmatch(each[2])]
                if path.count("{") == 1 and any(each[2] in self.paths for each in found):    # templates/builds is no template
                    found = [each for each in found if each[2] not in self.paths]
                yield f"{verb.upper()} {path}", call, found

    def test_each_call_has_a_method(self):
        self.assertEqual([route for route, _, found in self.calls() if not found], [])

    def test_each_parameter_of_a_query(self):
        missing = {}
        for route, call, found in self.calls():
            names = {part["name"] for part in call.get("parameters", []) if part["in"] == "query"}
            if lacking := names - set().union(*(each[3] for each in found)):
                missing[route] = lacking
            self.assertLessEqual(set().union(*(each[3] for each in found)), names, route)
        self.assertEqual(missing, {})

    def test_each_field_of_a_body_is_named(self):
        missing = {}
        for route, call, found in self.calls():
            schema = call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            words = set()
            for name in {each[0] for each in found}:
                method = getattr(ramet.Ramet, name)
                words |= set(inspect.signature(method).parameters) | set(re.findall(r"\w+", " ".join(re.findall("`[^`]*`", inspect.getdoc(method)))))
            if lacking := {field for field in schema.get("properties", {}) if field not in words and GIVEN_AS.get(field) not in words}:
                missing[route] = lacking
        self.assertEqual(missing, {})

    def test_what_makes_something_has_a_key(self):
        for route, call, found in self.calls():
            creates = "creates" in call["x-ramet-access"].split()
            for name, *_, headers in found:
                self.assertEqual("Idempotency-Key" in headers, creates, f"{route} by {name}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
