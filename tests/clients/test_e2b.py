# SPDX-License-Identifier: Apache-2.0
"""The published e2b and e2b-code-interpreter (PyPI), e2b and @e2b/code-interpreter (npm): with addresses and key changed alone."""
import unittest

import clients
import rig


class E2B(clients.Clients):
    FAMILY = "e2b"

    def where(self):
        return {"E2B_API_URL": self.daemon.url, "E2B_SANDBOX_URL": self.daemon.url, "E2B_API_KEY": self.key}

    def test_python(self):
        if PYTHON is None:
            self.skipTest("e2b cannot be installed here from PyPI")
        self.run_client([PYTHON, self.program("calls.py")], **self.where())
        self.assertEqual(self.left_over(), [])

    def test_typescript(self):
        if MODULES is None:
            self.skipTest("e2b cannot be installed here from npm")
        self.run_client(["node", self.program("calls.mjs"), MODULES], **self.where())
        self.assertEqual(self.left_over(), [])


if __name__ == "__main__":
    clients.need()
    PYTHON, MODULES = clients.python_with("e2b"), clients.node_modules("e2b")
    if PYTHON is None and MODULES is None:
        rig.skip("neither registry is in reach")
    unittest.main(verbosity=2)
