# SPDX-License-Identifier: Apache-2.0
"""MIME bundles as bounded JSON: whatever user code hands to display() ends as text that every JSON reader takes.

Lone surrogates are written out as \\udXXX, numbers that JSON does not have become null or text, what is too deep or of no
JSON type becomes its repr. A text/plain that is too long is cut; other content cannot be cut, so it is left out and named.
"""
import base64
import json
import math

# All of them count bytes of JSON.
TEXT_MAX = 1 << 20       # text/plain, cut
CONTENT_MAX = 8 << 20    # any other content
BUNDLE_MAX = 12 << 20    # all contents of a bundle
DEPTH_MAX = 64
VALUE_MAX = 256 << 10    # an error's value, a traceback
INT_MAX = 1 << 63
CUT = "application/x-ramet-cut"    # a key that says: what is here was cut already


def text(value):
    """A str that UTF-8 can carry."""
    try:
        value.encode("utf-8")
        return value
    except UnicodeEncodeError:
        return value.encode("utf-8", "backslashreplace").decode("utf-8")


def shorten(value, limit):
    """(text, whether it was cut). The middle goes: of an error both ends matter."""
    if len(value) <= limit:
        return value, False
    half = limit // 2
    return f"{value[:half]}\n... {len(value) - 2 * half} characters left out ...\n{value[-half:]}", True


def safe_str(value):
    """str(value) of an object that may fail at that, too."""
    try:
        result = str(value)
    except BaseException as error:    # noqa: B902: user code runs in here
        result = f"<str() of {type(value).__name__} failed: {type(error).__name__}>"
    return shorten(text(result), VALUE_MAX)[0]


def plain(value, depth=0):
    """What JSON can say of a value."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return text(str(value))
    if isinstance(value, int):
        return int(value) if -INT_MAX <= value < INT_MAX else text(hex(value))
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth < DEPTH_MAX and isinstance(value, dict):
        return {text(str(key)): plain(item, depth + 1) for key, item in value.items()}
    if depth < DEPTH_MAX and isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, depth + 1) for item in value]
    if hasattr(value, "tolist") and depth < DEPTH_MAX:    # numpy
        return plain(value.tolist(), depth + 1)
    return safe_str(value) if depth < DEPTH_MAX else "..."


def content(mime, value):
    """A content as JSON text, and whether it was cut."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return json.dumps(base64.b64encode(value).decode("ascii")), False
    if isinstance(value, str):
        value, cut = text(value), False
        if mime in ("image/png", "image/jpeg", "application/pdf"):
            value = value.replace("\n", "")
        if mime == "text/plain" and len(value) > TEXT_MAX // 6:
            encoded = json.dumps(value)
            if len(encoded) <= TEXT_MAX:
                return encoded, False
            value, cut = value[:TEXT_MAX // 6] + f"\n... cut here: {len(value)} characters in all ...", True
        return json.dumps(value), cut
    return json.dumps(plain(value), allow_nan=False), False


def encode(data):
    """(JSON text of a bundle, whether something was cut or left out)."""
    parts, truncated, left_out = {}, False, {}
    for mime, value in data.items():
        encoded, cut = content(mime, value)
        truncated |= cut
        if len(encoded) > CONTENT_MAX:
            left_out[text(str(mime))] = len(encoded)
        else:
            parts[text(str(mime))] = encoded
    while sum(map(len, parts.values())) > BUNDLE_MAX:
        largest = max(parts, key=lambda mime: len(parts[mime]))
        left_out[largest] = len(parts.pop(largest))
    if left_out and "text/plain" not in parts:
        words = ", ".join(f"{mime} of {size} bytes" for mime, size in left_out.items())
        parts["text/plain"] = json.dumps(f"<left out, for it is too large: {words}; write it to a file>")
    body = ", ".join(f"{json.dumps(mime)}: {encoded}" for mime, encoded in parts.items())
    return "{" + body + "}", truncated or bool(left_out)
