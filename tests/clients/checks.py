# SPDX-License-Identifier: Apache-2.0
"""How calls.py of each family says what it tries."""
tried = []


def check(what, condition, seen=None):
    assert condition, f"{what}: {seen!r}"
    tried.append(what)
    print("ok", what, flush=True)


def raises(what, kind, words, call):
    """The call must fail with an error of exactly this class that has these words."""
    try:
        seen = call()
    except Exception as error:    # the class is what is tried
        check(what, type(error) is kind and words in str(error), error)
        return error
    raise AssertionError(f"{what}: no error but {seen!r}")
