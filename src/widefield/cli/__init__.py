# SPDX-License-Identifier: Apache-2.0
"""The command line: parse words, call the rooms below, print."""

from widefield.cli.main import main as main
