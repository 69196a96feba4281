# SPDX-License-Identifier: Apache-2.0
"""Published segmentation heads: from a backbone's features to logits."""

from widefield.models.heads.apc_head import APCHead as APCHead
from widefield.models.heads.ccnet_head import CCNetHead as CCNetHead
from widefield.models.heads.danet_head import DANetHead as DANetHead
from widefield.models.heads.danet_head import DANetOutput as DANetOutput
from widefield.models.heads.light_ham_head import LightHamHead as LightHamHead
