# SPDX-License-Identifier: Apache-2.0
"""Ground floor: the interface, the registry, the numerics that everything above stands on."""

from widefield.core.context import Context as Context
from widefield.core.cost import Cost as Cost
from widefield.core.errors import NoOperator as NoOperator
from widefield.core.errors import UnknownName as UnknownName
from widefield.core.errors import UnknownOption as UnknownOption
from widefield.core.norm import BatchNorm as BatchNorm
from widefield.core.pointwise import Pointwise as Pointwise
from widefield.core.registry import Facts as Facts
from widefield.core.registry import create as create
from widefield.core.registry import describe as describe
from widefield.core.registry import list_modules as list_modules
from widefield.core.registry import register as register
from widefield.core.status import Outcome as Outcome
from widefield.core.status import Status as Status
