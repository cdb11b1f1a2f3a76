# SPDX-License-Identifier: Apache-2.0
"""Values that a schema of the document does not take: of other types, beyond its ranges, of other words; and some that it takes."""
import schema

ANY = [None, True, 7, -7, 1.5, "text", [], {}, ["text"], {"text": 7}]


def resolve(part, shapes):
    """The schema that stands behind names, without the null that a body's field may be."""
    while True:
        if "$ref" in part:
            part = {**shapes[part["$ref"].split("/")[-1]], **{key: value for key, value in part.items() if key != "$ref"}}
        elif "anyOf" in part and {"type": "null"} in part["anyOf"] and len(part["anyOf"]) == 2:
            part = next(each for each in part["anyOf"] if each != {"type": "null"})
        elif "allOf" in part and len(part) == 1:
            part = {**resolve(part["allOf"][0], shapes), "all": part["allOf"]}
        else:
            return part


def kind_of(part):
    kinds = part.get("type")
    return next((kind for kind in kinds if kind != "null"), None) if isinstance(kinds, list) else kinds


def values(field, shapes):
    """Of a body's field."""
    part = resolve(field, shapes)
    kind = kind_of(part)
    found = [value for value in ANY if value is not None]
    if "minimum" in part:
        found.append(part["minimum"] - 1)
    if "exclusiveMinimum" in part:
        found.append(part["exclusiveMinimum"])
    if "maximum" in part:
        found += [part["maximum"] + 1, part["maximum"] * 1000]
    if "maxLength" in part:
        found.append("x" * (part["maxLength"] + 1))
    if "enum" in part:
        found += [word.upper() for word in part["enum"] if isinstance(word, str)]
    if kind == "string":
        found += ["", "a\0b", "UPPER", "-first", "with space", "1-digit-first"]
    if "maxItems" in part and part["maxItems"] < 1000:
        found.append(["a"] * (part["maxItems"] + 1))
    if kind == "object":
        found += [{"": "x"}, {"a=b": "x"}, {"a": "\0"}, {"a": None}, {"a": ["b"]}]
    return [value for value in found if schema.faults(field, value, shapes, closed=False)]


def texts(parameter, shapes):
    """Of a query's parameter, as text. A zero byte can be in none of them."""
    part = resolve(parameter["schema"], shapes)
    kind = kind_of(part)
    found = ["a\0b"]
    if kind in ("integer", "number"):
        found += ["", "x", "-1", "1x", "nan", "1e400", "99999999999999999999999"]
        found += [str(part[word] + step) for word, step in (("minimum", -1), ("maximum", 1)) if word in part]
        found += ["1.5"] if kind == "integer" else []
    elif "enum" in part:
        found += ["", "no-such-word", "2"]
    elif part.get("minLength", 0) > 0:
        found.append("")
    if part.get("pattern", "").startswith(("^[0-7]", "^([0-9]")):
        found += ["x", "-1", ""]
    return found


def sample(part, shapes):
    """A value that the schema takes."""
    part = resolve(part, shapes)
    if "default" in part:
        return part["default"]
    if "enum" in part:
        return part["enum"][0]
    kind = kind_of(part)
    if kind in ("integer", "number"):
        return max(part.get("minimum", 0), 1)
    return {"string": "text", "boolean": True, "array": [sample(part["items"], shapes)] if kind == "array" else None,
            "object": {}}.get(kind, "text")


def body(operation, document):
    """A body that the call takes."""
    content = operation["requestBody"]["content"]["application/json"]
    if "examples" in content:
        return dict(content["examples"]["example1"]["value"])
    return {name: sample(content["schema"]["properties"][name], document.schemas) for name in content["schema"].get("required", [])}
