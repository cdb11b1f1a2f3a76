# SPDX-License-Identifier: Apache-2.0
"""The published pandastack (PyPI) and @pandastack/sdk (npm): their sandbox surface, with base address and key changed alone."""
import unittest

import clients
import rig


class PandaStack(clients.Clients):
    FAMILY = "pandastack"

    def test_python(self):
        if PYTHON is None:
            self.skipTest("pandastack cannot be installed here")
        self.run_client([PYTHON, self.program("calls.py")], PANDASTACK_API=self.daemon.url, PANDASTACK_API_KEY=self.key)
        self.assertEqual(self.left_over(), [])

    def test_typescript(self):
        if MODULES is None:
            self.skipTest("@pandastack/sdk cannot be installed here")
        command = ["node", self.program("calls.mjs"), MODULES]
        self.run_client(command, PANDASTACK_API=self.daemon.url + "/pandastack", PANDASTACK_API_KEY=self.key)
        self.run_client(command + ["bare"], PANDASTACK_API=self.daemon.url, PANDASTACK_API_KEY=self.key)
        self.assertEqual(self.left_over(), [])


if __name__ == "__main__":
    clients.need()
    PYTHON, MODULES = clients.python_with("pandastack"), clients.node_modules("pandastack")
    if PYTHON is None and MODULES is None:
        rig.skip("neither registry is in reach")
    unittest.main(verbosity=2)
