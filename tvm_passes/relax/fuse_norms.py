"""Compute normalizations of groups, and along one axis, by the operators of `topi_ext`."""

from __future__ import annotations

from functools import reduce
from operator import or_

import numpy as np

from topi_ext.conv2d_nhwc.problem import GivenActivation
from topi_ext.group_norm import group_norm
from topi_ext.group_norm.op import NAME as GROUP_NORM
from topi_ext.layer_norm import layer_norm
from topi_ext.layer_norm.op import FLOATS

import tvm
from tvm import relax
from tvm.ir import Attrs, Expr
from tvm.relax.dpl import is_op, wildcard

from ..convolution.fused_call import given_activation, why_not_taken_in
from ..engine.contract import LEGAL, NO_MATCH, Answer, Match, Refusal, Rule
from .graph import dtype_of, op_name, shape_of
from .rule_pass import rule_pass
from .take_in_activations import ACTIVATIONS


class _OfNorm(Rule):
    data, gamma, beta = wildcard(), wildcard(), wildcard()

    def plan(self, match: Match) -> Answer | Refusal:
        shape, dtype, attrs = shape_of(match.data), dtype_of(match.data), match.root.attrs
        if shape is None or 0 in shape:
            return Refusal("the shape is dynamic, or the tensor is empty")
        if dtype not in FLOATS or not {dtype_of(match.gamma), dtype_of(match.beta)} <= {"float32", dtype}:
            return Refusal(f"the types are not all {' or '.join(FLOATS)}")
        if not float(attrs.epsilon) > 0:
            return Refusal("epsilon is not above 0")
        return self.why_other(attrs, len(shape)) or LEGAL

    def why_other(self, attrs: Attrs, rank: int) -> Refusal | None:
        """Why it normalizes what the operator does not, or None."""
        raise NotImplementedError


class ScaledBehind(Rule):
    """Fold a number for each channel, by which a nn.group_norm is multiplied or to which it is added.

    Why legal: gamma and beta are that, too, and constants; nothing else uses the normalization. PyTorch
    exports a normalization of groups so, behind one without gamma and beta.
    """

    one, other = wildcard(), wildcard()
    pattern = is_op("relax.multiply")(one, other) | is_op("relax.add")(one, other)

    def where(self, match: Match) -> bool:
        return self._norms(match) != []

    def plan(self, match: Match) -> tuple[np.ndarray, np.ndarray] | Answer | Refusal:
        """The new gamma and beta."""
        norm, place = self._norms(match)[0]
        attrs, (_, *scales) = norm.attrs, norm.args
        gamma, beta, by = (match.graph.constant(each) for each in (*scales, match.root.args[1 - place]))
        if by is None:
            return NO_MATCH
        if gamma is None or beta is None or not (attrs.scale and attrs.center):
            return Refusal("gamma or beta is no constant")
        if match.graph.users(norm) != [match.root] or gamma.dtype != by.dtype:
            return Refusal("the normalization has other users, or other types than its scale")
        axis = int(attrs.channel_axis) % match.root.ty.ndim
        wanted = [gamma.size if at == axis else 1 for at in range(match.root.ty.ndim)]
        if list(by.shape) != wanted[len(wanted) - by.ndim :] or by.size != gamma.size:
            return Refusal("it is not one number for each channel")
        by = by.reshape(-1)
        return (gamma, beta + by) if op_name(match.root) == "relax.add" else (gamma * by, beta * by)

    def rewrite(self, match: Match, plan: tuple[np.ndarray, np.ndarray]) -> Expr:
        norm, _ = self._norms(match)[0]
        scales = [relax.const(np.ascontiguousarray(each), str(each.dtype)) for each in plan]
        return relax.Call(norm.op, [norm.args[0], *scales], norm.attrs)

    def _norms(self, match: Match) -> list[tuple[Expr, int]]:
        """The arguments that are such a normalization, and which ones they are."""
        values = [match.graph.value(argument) for argument in match.root.args]
        return [(each, at) for at, each in enumerate(values) if op_name(each) == "relax.nn.group_norm"]


class OfGroupNorm(_OfNorm):
    """Replace nn.group_norm with `topi_ext.group_norm`.

    Why legal: both normalize the pixels and channels of each group of an image, and multiply and add for each
    channel.
    """

    pattern = is_op("relax.nn.group_norm")(_OfNorm.data, _OfNorm.gamma, _OfNorm.beta)

    def why_other(self, attrs: Attrs, rank: int) -> Refusal | None:
        channels, axes = int(attrs.channel_axis) % rank, {int(axis) % rank for axis in attrs.axes}
        if channels not in (1, rank - 1) or axes != set(range(1, rank)) - {channels}:
            return Refusal("a group is not all pixels of an image")
        return None

    def rewrite(self, match: Match, plan: object) -> Expr:
        attrs = match.root.attrs
        return group_norm(
            match.data,
            *_scales(match),
            groups=int(attrs.num_groups),
            axis=int(attrs.channel_axis) % match.root.ty.ndim,
            epsilon=float(attrs.epsilon),
        )


class OfLayerNorm(_OfNorm):
    """Replace nn.layer_norm along one axis with `topi_ext.layer_norm`.

    Why legal: both normalize along the axis, and multiply and add for each place on it.
    """

    pattern = is_op("relax.nn.layer_norm")(_OfNorm.data, _OfNorm.gamma, _OfNorm.beta)

    def why_other(self, attrs: Attrs, rank: int) -> Refusal | None:
        return Refusal("it normalizes along several axes") if len(attrs.axes) > 1 else None

    def rewrite(self, match: Match, plan: object) -> Expr:
        attrs = match.root.attrs
        return layer_norm(match.data, *_scales(match), axis=int(attrs.axes[0]), epsilon=float(attrs.epsilon))


class _BehindNorm(Rule):
    norm = is_op(GROUP_NORM)(varg_default_wildcard=True)


class WithActivation(_BehindNorm):
    """Fold an activation into the `topi_ext.group_norm` before it.

    Why legal: the operator applies one at the end, and nothing else uses what is in between.
    """

    pattern = reduce(or_, (is_op(name)(_BehindNorm.norm, varg_default_wildcard=True) for name in ACTIVATIONS))

    def plan(self, match: Match) -> GivenActivation | Answer | Refusal:
        if given_activation(match.norm.attrs, "activation") is not None:
            return NO_MATCH
        if match.graph.users(match.norm) != [match.root]:
            return Refusal("the result of the normalization has other users")
        activation = ACTIVATIONS[op_name(match.root)](match.root)
        return why_not_taken_in(activation) or activation

    def rewrite(self, match: Match, plan: GivenActivation) -> Expr:
        attrs, (data, *scales) = match.norm.attrs, match.norm.args
        gamma, beta = (
            each if attrs[f"has_{name}"] else None for name, each in zip(("gamma", "beta"), scales)
        )
        return group_norm(
            data,
            gamma,
            beta,
            groups=int(attrs["groups"]),
            axis=int(attrs["axis"]),
            epsilon=float(attrs["epsilon"]),
            activation=plan,
        )


def _scales(match: Match) -> tuple[Expr | None, Expr | None]:
    """Gamma and beta, where they are used."""
    attrs = match.root.attrs
    return match.gamma if attrs.scale else None, match.beta if attrs.center else None


def FuseNorms() -> tvm.transform.Pass:
    """Compute nn.group_norm and nn.layer_norm by `topi_ext`: one kernel each, with its activation.

    The operators take data in half precision, of which they compute all in float32, and gamma and beta that
    stay float32: `InMixedPrecision`, which comes behind it, leaves normalizations by TVM in float32.
    """
    return rule_pass("FuseNorms", ScaledBehind(), OfGroupNorm(), OfLayerNorm(), WithActivation())
