# SPDX-License-Identifier: Apache-2.0
"""Which torch operators multiply and add, which only touch elements, which only move them.

Everything that is in none of these tables is *unknown*: it is run, and named in the report, so that a total
is never silently too small. Resampling (pooling, interpolation, grid sampling) is elementwise here: its
    cost is a
small constant a number, and other tables of multiply-adds leave it out too.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from .factorisations import FACTORISATIONS
from .formulas import PRODUCTS, Formula


class Kind(Enum):
    """What an operator does with numbers."""

    PRODUCT = "product"
    ELEMENTWISE = "elementwise"
    MOVEMENT = "movement"
    UNKNOWN = "unknown"


def words(text: str) -> frozenset[str]:
    """The names in a block of text."""
    return frozenset(text.split())


# Beyond the operators that torch itself tags as pointwise or as a reduction. `x_backward` follows `x`.
ELEMENTWISE = words(
    """
    softmax _softmax _log_softmax _safe_softmax _masked_softmax logsumexp cumsum cumprod logcumsumexp cummax cummin
    _softmax_backward_data _log_softmax_backward_data sum mean prod nansum norm linalg_vector_norm dist trace
    _foreach_norm linalg_cross addr renorm median nanmedian mode kthvalue topk sort argsort max min amax
    amin argmax
    argmin aminmax all any count_nonzero std std_mean var var_mean bincount histc searchsorted bucketize isin
    native_batch_norm cudnn_batch_norm miopen_batch_norm batch_norm native_layer_norm native_group_norm
    _native_batch_norm_legit _native_batch_norm_legit_functional _native_batch_norm_legit_no_training
    _batch_norm_with_update _batch_norm_no_update batch_norm_elemt batch_norm_stats batch_norm_gather_stats
    batch_norm_gather_stats_with_counts batch_norm_backward_reduce batch_norm_backward_elemt
    batch_norm_update_stats _fused_rms_norm _weight_norm_interface
    native_dropout _fused_dropout _masked_scale glu prelu _prelu_kernel rrelu_with_noise threshold
    log_sigmoid_forward
    log_sigmoid gelu elu leaky_relu hardtanh hardsigmoid hardswish softplus softshrink hardshrink silu mish
    sigmoid
    tanh logit polar complex _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _thnn_fused_gru_cell
    _thnn_differentiable_lstm_cell
    _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d adaptive_max_pool3d avg_pool2d avg_pool3d
    max_pool2d_with_indices max_pool3d_with_indices fractional_max_pool2d fractional_max_pool3d max_unpool2d
    max_unpool3d
    upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact1d
    _upsample_nearest_exact2d
    _upsample_nearest_exact3d upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d
    _upsample_bilinear2d_aa _upsample_bicubic2d_aa grid_sampler_2d grid_sampler_3d
    _grid_sampler_2d_cpu_fallback
    affine_grid_generator
    scatter_add scatter_reduce index_add index_reduce segment_reduce _segment_reduce _embedding_bag
    _embedding_bag_per_sample_weights _embedding_bag_forward_only _embedding_bag_dense embedding_dense
    mse_loss smooth_l1_loss huber_loss soft_margin_loss multi_margin_loss multilabel_margin_loss
    multilabel_margin_loss_forward binary_cross_entropy binary_cross_entropy_with_logits nll_loss
    nll_loss_forward nll_loss2d nll_loss2d_forward _ctc_loss
    bernoulli normal uniform exponential multinomial poisson _standard_gamma cauchy geometric log_normal
    rsub floor_divide glu_jvp _transform_bias_rescale_qkv _is_all_true _is_any_true _logcumsumexp
    _cummax_helper
    _cummin_helper _aminmax random binomial histogram allclose
    _unique _unique2 unique_dim unique_consecutive _amp_foreach_non_finite_check_and_unscale
    """
)
MOVEMENT = words(
    """
    clone copy _to_copy contiguous lift lift_fresh detach alias _unsafe_view _reshape_alias _conj_physical set
    resize resize_as _resize_output empty empty_like empty_strided empty_permuted new_empty
    new_empty_strided full
    full_like new_full zeros zeros_like new_zeros ones ones_like new_ones zero fill eye arange linspace
    logspace
    scalar_tensor rand rand_like randn randn_like randint randint_like randperm hann_window tril_indices
    triu_indices
    cat stack _chunk_cat block_diag unsafe_split unsafe_split_with_sizes repeat repeat_interleave roll flip
    rot90
    constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
    replication_pad3d pixel_shuffle pixel_unshuffle channel_shuffle im2col col2im unfold tril triu diag_embed
    diagonal diagonal_scatter select select_scatter slice slice_scatter as_strided_scatter transpose
    gather scatter index _unsafe_index index_put _index_put_impl _unsafe_index_put _unsafe_masked_index
    _unsafe_masked_index_put_accumulate index_select index_copy index_fill masked_fill masked_select
    masked_scatter
    take put where embedding nonzero nonzero_static one_hot bitwise_not
    _local_scalar_dense item equal is_same_size is_pinned _pin_memory _assert_async _functional_assert_async
    _assert_tensor_metadata _assert_scalar _linalg_check_errors sym_constrain_range
    sym_constrain_range_for_size value_selecting_reduction unbind squeeze unsqueeze t
    _stack as_strided range bartlett_window blackman_window hamming_window kaiser_window fft_fftfreq
    fft_rfftfreq
    _efficientzerotensor lu_unpack view_as_real view_as_complex real imag
    """
)
METADATA = frozenset(("prim", "prims", "profiler", "c10d_functional", "debugprims"))
TAGGED = frozenset(
    tag for name in ("pointwise", "reduction") if (tag := getattr(torch.Tag, name, None)) is not None
)


def name_of(func: Any) -> str:
    """The operator's name as the tables have it: no overload, no in-place underscore."""
    packet = getattr(func, "_overloadpacket", func)
    name = getattr(packet, "__name__", str(packet))
    return name if name.startswith("__") else name.rstrip("_")


def formula_of(func: Any) -> Formula | None:
    """The multiply-adds of an operator as a function of its call, or None when no formula is known.

    The tables of this package come first, then what is registered with `torch.utils.flop_counter`, by torch
    or by anybody: `register_flop_formula` is the way to teach this counter an operator of one's own.
    """
    if getattr(func, "namespace", "aten") == "aten":
        name = name_of(func)
        if name in PRODUCTS or name in FACTORISATIONS:
            return PRODUCTS.get(name) or FACTORISATIONS[name]
    operations = flop_registry.get(getattr(func, "_overloadpacket", func))
    if operations is None:
        return None
    return lambda out, *args, **kwargs: operations(*args, **kwargs, out_val=out) // 2


def kind_of(func: Any) -> Kind:
    """How an operator enters the count."""
    if formula_of(func) is not None:
        return Kind.PRODUCT
    if not isinstance(func, torch._ops.OpOverload):
        return Kind.UNKNOWN
    if func.namespace in METADATA or func.is_view:
        return Kind.MOVEMENT
    if func.namespace != "aten":
        return Kind.UNKNOWN
    name = name_of(func)
    stem = name.removesuffix("_backward")
    if stem in MOVEMENT or name.endswith("_copy"):
        return Kind.MOVEMENT
    if stem in ELEMENTWISE or not TAGGED.isdisjoint(tags_of(func, name)):
        return Kind.ELEMENTWISE
    return Kind.UNKNOWN


def tags_of(func: torch._ops.OpOverload, name: str) -> set[torch.Tag]:
    """Tags of an operator and of its functional form: torch does not tag every in-place one."""
    functional = getattr(getattr(torch.ops.aten, name, None), func._overloadname, None)
    return {*func.tags, *getattr(functional, "tags", ())}
