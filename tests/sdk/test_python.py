# SPDX-License-Identifier: Apache-2.0
"""The Python client on real machines; see machines.py. Words of the command line choose tests."""
import machines
from python_agents import PythonAgents
from python_calls import PythonCalls
from python_cases import PythonCases
from python_examples import PythonExamples

if __name__ == "__main__":
    machines.main(PythonCalls, PythonCases, PythonExamples, PythonAgents)
