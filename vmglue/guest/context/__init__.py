# SPDX-License-Identifier: Apache-2.0
"""Code contexts, the guest's side: see README.md. supervisor.py and kernel.py are the programs, the rest is theirs."""
