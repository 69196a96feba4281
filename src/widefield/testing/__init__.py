# SPDX-License-Identifier: Apache-2.0
"""The contract of a context module, as a suite that anybody can run on their own."""

from widefield.testing.contract import ContractError as ContractError
from widefield.testing.contract import check_context as check_context
from widefield.testing.contract import find_broken as find_broken
from widefield.testing.subject import CHECKS as CHECKS
from widefield.testing.subject import Broken as Broken
