# SPDX-License-Identifier: Apache-2.0
"""The part of JSON schema that the API's document uses. A word of it that this does not know is an error, never passed over.

faults(schema, value, components, closed=True) gives sentences; with `closed` an object may hold nothing that its
schema does not name, as a test of answers wants it although a client should not.
"""
import base64
import binascii
import json
import re

TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
SAID = {"description", "default", "example", "examples"}    # words that ask for nothing


def has_type(value, name):
    if name == "integer":
        return isinstance(value, int) and not isinstance(value, bool) or isinstance(value, float) and value.is_integer()
    if name == "number":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, TYPES[name])


def same(one, other):
    return one == other and isinstance(one, bool) == isinstance(other, bool)


class Checker:
    def __init__(self, components, closed):
        self.components, self.closed = components, closed

    def resolve(self, schema):
        while "$ref" in schema:
            schema = {**self.components[schema["$ref"].split("/")[-1]], **{k: v for k, v in schema.items() if k != "$ref"}}
        return schema

    def names(self, schema):
        """The members that a schema describes, through allOf and the like; None = any."""
        schema = self.resolve(schema)
        if schema.get("additionalProperties") not in (None, False) or "propertyNames" in schema:
            return None
        if not {"properties", "additionalProperties", "allOf", "anyOf", "oneOf"} & set(schema):
            return None if schema.get("type", "object") == "object" else set()
        found = set(schema.get("properties", {}))
        for word in ("allOf", "anyOf", "oneOf"):
            for part in schema.get(word, []):
                more = self.names(part)
                if more is None:
                    return None
                found |= more
        return found

    def faults(self, schema, value, where, closed=None):
        schema = self.resolve(schema)
        closed = self.closed if closed is None else closed
        types = schema.get("type")
        if types is not None and not any(has_type(value, name) for name in ([types] if isinstance(types, str) else types)):
            yield f"{where}: {shown(value)} is no {types}"
            return
        for word, argument in schema.items():
            if word == "type" or word in SAID:
                continue
            check = getattr(self, "check_" + word, None)
            if check is None:
                raise AssertionError(f"schema.py does not know the word {word!r}")
            yield from check(schema, argument, value, where, closed)
        if closed and isinstance(value, dict):
            known = self.names(schema)
            for name in value if known is not None else ():
                if name not in known:
                    yield f"{where}: has {name!r}, which the document does not know"

    # ---- one function a word ----

    def check_enum(self, schema, argument, value, where, closed):
        if not any(same(value, each) for each in argument):
            yield f"{where}: {shown(value)} is none of {argument}"

    def check_const(self, schema, argument, value, where, closed):
        if not same(value, argument):
            yield f"{where}: {shown(value)} is not {argument!r}"

    def check_minimum(self, schema, argument, value, where, closed):
        if has_type(value, "number") and value < argument:
            yield f"{where}: {value} is below {argument}"

    def check_exclusiveMinimum(self, schema, argument, value, where, closed):
        if has_type(value, "number") and value <= argument:
            yield f"{where}: {value} is not above {argument}"

    def check_maximum(self, schema, argument, value, where, closed):
        if has_type(value, "number") and value > argument:
            yield f"{where}: {value} is above {argument}"

    def check_minLength(self, schema, argument, value, where, closed):
        if isinstance(value, str) and len(value) < argument:
            yield f"{where}: {shown(value)} is shorter than {argument}"

    def check_maxLength(self, schema, argument, value, where, closed):
        if isinstance(value, str) and len(value) > argument:
            yield f"{where}: {shown(value)} is longer than {argument}"

    def check_pattern(self, schema, argument, value, where, closed):
        if isinstance(value, str) and re.search(argument, value) is None:
            yield f"{where}: {shown(value)} does not match {argument}"

    def check_format(self, schema, argument, value, where, closed):
        assert argument in ("date-time", "uri"), argument
        if argument == "date-time" and isinstance(value, str) and \
                not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", value):
            yield f"{where}: {shown(value)} is no time"
        if argument == "uri" and isinstance(value, str) and not re.match(r"[a-z+]+:", value):
            yield f"{where}: {shown(value)} is no address"

    def check_contentEncoding(self, schema, argument, value, where, closed):
        try:
            if isinstance(value, str):
                base64.b64decode(re.sub(r"\s", "", value), validate=True)
        except binascii.Error:
            yield f"{where}: {shown(value)} is no base64"

    def check_items(self, schema, argument, value, where, closed):
        for i, item in enumerate(value if isinstance(value, list) else ()):
            yield from self.faults(argument, item, f"{where}[{i}]", closed)

    def check_minItems(self, schema, argument, value, where, closed):
        if isinstance(value, list) and len(value) < argument:
            yield f"{where}: has fewer than {argument} entries"

    def check_maxItems(self, schema, argument, value, where, closed):
        if isinstance(value, list) and len(value) > argument:
            yield f"{where}: has more than {argument} entries"

    def check_properties(self, schema, argument, value, where, closed):
        for name, part in argument.items():
            if isinstance(value, dict) and name in value:
                yield from self.faults(part, value[name], f"{where}.{name}", closed)

    def check_required(self, schema, argument, value, where, closed):
        for name in argument if isinstance(value, dict) and isinstance(argument, list) else ():
            if name not in value:
                yield f"{where}: lacks {name!r}"

    def check_additionalProperties(self, schema, argument, value, where, closed):
        for name in value if isinstance(value, dict) else ():
            if name in schema.get("properties", {}):
                continue
            if argument is False:
                yield f"{where}: has {name!r}, which is not allowed"
            elif argument is not True:
                yield from self.faults(argument, value[name], f"{where}.{name}", closed)

    def check_propertyNames(self, schema, argument, value, where, closed):
        for name in value if isinstance(value, dict) else ():
            yield from self.faults(argument, name, f"{where}: name")

    def check_not(self, schema, argument, value, where, closed):
        if not list(self.faults(argument, value, where, False)):
            yield f"{where}: {shown(value)} is what it must not be"

    def check_allOf(self, schema, argument, value, where, closed):
        for part in argument:    # what one part does not know, another may
            yield from self.faults(part, value, where, False)

    def check_anyOf(self, schema, argument, value, where, closed, exactly=False):
        answers = [list(self.faults(part, value, where, closed and "properties" not in schema)) for part in argument]
        good = sum(not answer for answer in answers)
        if good == 0:
            yield min(answers, key=len)[0] + f" (the nearest of {len(argument)} shapes)"
        elif exactly and good > 1:
            yield f"{where}: {shown(value)} fits {good} shapes of which it may fit one"

    def check_oneOf(self, schema, argument, value, where, closed):
        yield from self.check_anyOf(schema, argument, value, where, closed, True)


def shown(value):
    return json.dumps(value)[:120]


def faults(schema, value, components, closed=True, where="it"):
    return list(Checker(components, closed).faults(schema, value, where))
