# SPDX-License-Identifier: Apache-2.0
"""Factorise: the map replaced by a low-rank reconstruction that an optimiser finds."""

from widefield.decomposition.a2 import DoubleAttention as DoubleAttention
from widefield.decomposition.cgnl import CGNL as CGNL
from widefield.decomposition.cgnl import CGNLRBF as CGNLRBF
from widefield.decomposition.concept import ConceptDecomposition as ConceptDecomposition
from widefield.decomposition.concept import concept_decomposition as concept_decomposition
from widefield.decomposition.em import EM as EM
from widefield.decomposition.em import em as em
from widefield.decomposition.emanet import EMAU as EMAU
from widefield.decomposition.emanet import EMAttention as EMAttention
from widefield.decomposition.ham import Ham as Ham
from widefield.decomposition.hamburger import Hamburger as Hamburger
from widefield.decomposition.hamburger import HamburgerCD as HamburgerCD
from widefield.decomposition.hamburger import HamburgerMinus as HamburgerMinus
from widefield.decomposition.hamburger import HamburgerNMF as HamburgerNMF
from widefield.decomposition.hamburger import HamburgerV2 as HamburgerV2
from widefield.decomposition.hamburger import HamburgerV2Plus as HamburgerV2Plus
from widefield.decomposition.hamburger import HamburgerVQ as HamburgerVQ
from widefield.decomposition.method import Factors as Factors
from widefield.decomposition.method import decompose as decompose
from widefield.decomposition.method import reconstruct as reconstruct
from widefield.decomposition.nmf import NMF as NMF
from widefield.decomposition.nmf import nmf as nmf
from widefield.decomposition.nmf import nmf_hals as nmf_hals
from widefield.decomposition.vector_quantisation import SoftVQ as SoftVQ
from widefield.decomposition.vector_quantisation import soft_vq as soft_vq
