# SPDX-License-Identifier: Apache-2.0
"""Published clients of other services against one server, with addresses and key changed alone: pandastack (PyPI),
@pandastack/sdk (npm), e2b and e2b-code-interpreter (PyPI), e2b and @e2b/code-interpreter (npm); and OpenAI's Agents SDKs with
their own clients of E2B: openai-agents (PyPI), @openai/agents with @openai/agents-extensions (npm)."""
import os
import unittest

import clients
import rig
import warm
from model_server import ModelServer


class Published(clients.Clients):
    def python(self, family, **where):
        if PYTHON[family] is None:
            self.skipTest(f"the Python packages of {family} cannot be installed here")
        self.run_client([PYTHON[family], clients.program(family, "calls.py")], **where)
        self.assertEqual(self.left_over(), [])

    def node(self, family, *words, **where):
        if MODULES[family] is None:
            self.skipTest(f"the npm packages of {family} cannot be installed here")
        self.run_client(["node", clients.program(family, "calls.mjs"), MODULES[family], *words], **where)
        self.assertEqual(self.left_over(), [])

    def pandastack(self, path=""):
        return {"PANDASTACK_API": self.daemon.url + path, "PANDASTACK_API_KEY": self.key}

    def e2b(self):
        return {"E2B_API_URL": self.daemon.url, "E2B_SANDBOX_URL": self.daemon.url, "E2B_API_KEY": self.key}

    def test_pandastack_python(self):
        self.python("pandastack", **self.pandastack())

    def test_pandastack_typescript(self):
        self.node("pandastack", **self.pandastack("/pandastack"))

    @unittest.skipUnless(os.environ.get("RAMET_TEST_LONG"), "a second pass of the same client: with RAMET_TEST_LONG=1")
    def test_pandastack_typescript_at_the_bare_address(self):
        self.node("pandastack", "bare", **self.pandastack())

    def test_e2b_python(self):
        self.python("e2b", **self.e2b())

    def test_e2b_typescript(self):
        self.node("e2b", **self.e2b())

    def test_agents_python(self):
        self.python("agents", **self.e2b())

    @unittest.skipUnless(os.environ.get("RAMET_TEST_LONG"), "a second agent on the same calls: with RAMET_TEST_LONG=1")
    def test_agents_typescript(self):
        script = [{"call": "exec_command", "arguments": {"cmd": "cat notes.txt; echo $WHO"}}, {"say": "it says {output}"}]
        with ModelServer(script) as model:
            self.node("agents", **self.e2b(), OPENAI_BASE_URL=model.base_url, OPENAI_API_KEY="none", OPENAI_AGENTS_DISABLE_TRACING="1")


if __name__ == "__main__":
    warm.need()
    FAMILIES = ("pandastack", "e2b", "agents")
    PYTHON = {family: clients.python_with(family) for family in FAMILIES}
    MODULES = {family: clients.node_modules(family) for family in FAMILIES}
    if not any([*PYTHON.values(), *MODULES.values()]):
        rig.skip("neither registry is in reach")
    unittest.main(verbosity=2)
