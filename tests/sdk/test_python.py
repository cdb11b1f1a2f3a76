# SPDX-License-Identifier: Apache-2.0
"""The Python client on real machines; see machines.py."""
import machines
from python_calls import PythonCalls

if __name__ == "__main__":
    machines.main(PythonCalls)
