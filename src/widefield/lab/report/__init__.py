# SPDX-License-Identifier: Apache-2.0
"""The report: one self-contained HTML page about a comparison of context modules."""

from __future__ import annotations

from .page import write_report

__all__ = ["write_report"]
