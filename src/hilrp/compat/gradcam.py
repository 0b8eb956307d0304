"""pytorch-grad-cam's contract, with relevance: no target layers to choose, no reshape functions to write.

Change ``from pytorch_grad_cam import GradCAM`` to ``from hilrp.compat.gradcam import HiLRPCAM as GradCAM``. Its target
classes (``pytorch_grad_cam.utils.model_targets``) work, and so does ``show_cam_on_image``.

What differs: without ``target_layers`` the map is the relevance of pixels, at the input's own resolution. With them it
is that of these layers, summed over channels and enlarged. A map holds what speaks for the target alone, from 0 to 1,
and lightly smoothed, as pictures need it; the signed map that sums to the difference is ``cam.explanation.map``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hilrp.attribution.combined import joined
from hilrp.attribution.explainer import Audit, Explainer, unwrap
from hilrp.attribution.explanation import Explanation
from hilrp.attribution.marking import smoothed
from hilrp.compat.asking import evaluated, place_of
from hilrp.compat.layer_maps import LayerMaps, from_0_to_1
from hilrp.compat.peers import peer
from hilrp.method.rules import DEFAULT_RULES, AnyRules
from hilrp.targets import logits_of
from hilrp.util.errors import ConstantScoreError, InputError, TargetError

#: Arguments of pytorch-grad-cam's classes that have no meaning here, and what to use instead.
_OTHERS = {
    "use_cuda": "the model runs where it is; move it with model.cuda()",
    "compute_input_gradient": "relevance is that of the input by itself",
    "uses_gradients": "there is nothing to choose",
    "detach": "cam.explanation holds tensors",
    "ablation_layer": "no activations are ablated",
    "batch": "set cam.batch_size",
}
#: Those of its calls.
_OF_CALLS = {
    "target_category": "give targets=[ClassifierOutputTarget(category)], one for each picture",
}


class HiLRPCAM:
    """Relevance maps in the form of pytorch-grad-cam's.

    The model is set to evaluation mode, as pytorch-grad-cam sets it.

    Args:
        model: Any model of pictures ``[B,C,H,W]`` (or volumes). Detectors of torchvision are taken as they are.
        target_layers: Modules at whose outputs relevance is read; by default it is that of the pixels.
        reshape_transform: From what a layer has to ``[B,C,h,w]``. Feature maps and token grids need none.
        rules: The rules, by name or as `hilrp.Rules`.
        reference: What relevance is relative to: see `hilrp.explain`.
        passes: How many passes to spend: see `hilrp.explain`.
        audit: ``"strict"`` raises where relevance could be lost, ``"warn"`` warns, ``"off"`` does neither.
        tta_transforms: What ``aug_smooth`` averages over, of ttach; by default mirrored, and three brightnesses.
        others: Arguments of pytorch-grad-cam's classes: each is an error that says what to use instead.

    Attributes:
        explanation: The last `hilrp.Explanation`: its signed map, its ledger, its notes.
        outputs: What the model returned.
        batch_size: How many pictures run at once; all of them, if it is None.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)).eval()
        >>> with HiLRPCAM(model) as cam:
        ...     grayscale = cam(input_tensor=torch.randn(2, 3, 8, 8), targets=None)
        >>> grayscale.shape, str(grayscale.dtype), float(grayscale.max())
        ((2, 8, 8), 'float32', 1.0)
    """

    def __init__(
        self,
        model: nn.Module,
        target_layers: Sequence[nn.Module] | None = None,
        reshape_transform: Callable[[Tensor], Tensor] | None = None,
        *,
        rules: AnyRules = DEFAULT_RULES,
        reference: Any = None,
        passes: int = 1,
        audit: Audit = "strict",
        tta_transforms: Any = None,
        **others: Any,
    ) -> None:
        for name in others:
            raise InputError(
                f"{name}= is no argument of HiLRPCAM: "
                f"{_OTHERS.get(name, 'it takes model, target_layers, reshape_transform, tta_transforms')}."
            )
        self.model = evaluated(model)
        if isinstance(target_layers, nn.Module) and not isinstance(target_layers, nn.ModuleList):
            raise InputError("target_layers is a module: give a list, target_layers=[model.layer4[-1]], or None.")
        self.target_layers = None if target_layers is None else list(target_layers)
        if isinstance(target_layers, str):
            raise InputError(
                f"target_layers={target_layers!r} is a str: give modules, target_layers=[model.layer4[-1]]."
            )
        if self.target_layers == []:
            raise InputError("target_layers is empty: give modules, or None for the relevance of pixels.")
        if reshape_transform is not None and self.target_layers is None:
            raise InputError("reshape_transform is for what layers have. Leave it out, or give target_layers=.")
        self.reshape_transform, self.tta_transforms = reshape_transform, tta_transforms
        explained = _as_explained(unwrap(self.model))
        self._layers = LayerMaps(unwrap(self.model), explained, self.target_layers or [], reshape_transform)
        self._explainer = Explainer(explained, rules, reference, audit, None, keep=self._layers.paths)
        self._passes = passes
        self.batch_size: int | None = None
        self.explanation: Explanation | None = None
        self.outputs: Any = None

    def __call__(
        self,
        input_tensor: Tensor,
        targets: Sequence[Callable[[Any], Tensor]] | None = None,
        aug_smooth: bool = False,
        eigen_smooth: bool = False,
        **others: Any,
    ) -> np.ndarray[Any, Any]:
        """A map of each picture, ``[B,H,W]`` in float32: what speaks for the target, over the most that any pixel does.

        Args:
            input_tensor: The pictures, preprocessed as the model expects.
            targets: One of pytorch-grad-cam's targets for each picture, or any function of its output; the predicted
                classes, if it is None.
            aug_smooth: Take the mean over changed pictures (`tta_transforms`), each explained and changed back.
            eigen_smooth: Not available.
            others: Arguments of pytorch-grad-cam's calls: each is an error that says what to use instead.
        """
        for name in others:
            raise InputError(
                f"{name}= is no argument of a call of HiLRPCAM: "
                f"{_OF_CALLS.get(name, 'it takes input_tensor, targets, aug_smooth')}."
            )
        if eigen_smooth:
            raise InputError(
                "eigen_smooth=True replaces a map by the first principal component of a layer's channels, which is no "
                "share of the output. Leave it out; for a steadier map use HiLRPCAM(..., passes=8), or aug_smooth=True."
            )
        x = self._checked(input_tensor)
        self._check_targets(targets, len(x))
        if not aug_smooth:
            return self._map(x, targets)
        if targets is not None:
            return self._smoothed_by_augmentation(x, targets)
        with torch.no_grad():
            return self._smoothed_by_augmentation(x, logits_of(self.model(x.clone())).argmax(-1))

    def __enter__(self) -> HiLRPCAM:
        return self

    def __exit__(self, *exception: object) -> None:
        """Does nothing: no hooks were left on the model."""

    def _checked(self, input_tensor: Any) -> Tensor:
        if not isinstance(input_tensor, Tensor) or input_tensor.ndim not in (4, 5):
            what = tuple(input_tensor.shape) if isinstance(input_tensor, Tensor) else type(input_tensor).__name__
            raise InputError(
                f"input_tensor is {what}: give pictures [B,C,H,W], or volumes [B,C,D,H,W]; of one add an axis, "
                "input_tensor[None]."
            )
        return input_tensor.detach().to(place_of(self.model).device)

    @staticmethod
    def _check_targets(targets: Any, batch: int) -> None:
        if targets is None:
            return
        if not isinstance(targets, (list, tuple)):
            raise TargetError(
                f"targets is a {type(targets).__name__}: give a list with one target for each picture, "
                "[ClassifierOutputTarget(281)]."
            )
        if len(targets) != batch:
            raise TargetError(f"targets has {len(targets)} entries for {batch} pictures: give one for each.")
        wrong = next((each for each in targets if not callable(each)), None)
        if wrong is not None:
            raise TargetError(f"targets holds {wrong!r}: give ClassifierOutputTarget({wrong!r}), or another function.")

    @staticmethod
    def _target(targets: Any, batch: int) -> Tensor | Callable[[Any], Tensor] | None:
        """What hilrp is asked: classes, where all targets are classes, and else a function of the output."""
        if targets is None or isinstance(targets, Tensor):  # classes that were predicted
            return targets
        classes = [each.category for each in targets if _is_theirs(each, "ClassifierOutputTarget")]
        if len(classes) == batch:
            return torch.as_tensor(classes)

        asked = [_in_known_operations(target) for target in targets]

        def score(output: Any) -> Tensor:
            found = [ask(own) for ask, own in zip(asked, _of_samples(output, batch), strict=True)]
            for target, value in zip(targets, found, strict=True):
                if not isinstance(value, Tensor) or value.numel() != 1:
                    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                    raise TargetError(f"targets: {target!r} returned {shape} for a picture: let it return one number.")
            return torch.stack([value.reshape(()) for value in found])

        return score

    def _map(self, x: Tensor, targets: Any) -> np.ndarray[Any, Any]:
        """The maps of some pictures; as many are explained at once as `batch_size` says."""
        size = len(x) if self.batch_size is None else self.batch_size
        if isinstance(size, bool) or not isinstance(size, Integral) or size < 1:
            raise InputError(f"batch_size={size!r}: give how many pictures run at once, from 1, or None for all.")
        parts = [slice(first, first + int(size)) for first in range(0, len(x), int(size))]
        found = [self._explained(x[part], targets if targets is None else targets[part]) for part in parts]
        maps = torch.cat([self._read(each, x[part]) for each, part in zip(found, parts, strict=True)])
        if len(found) > 1:  # of a detector's layers the rows are not known to be those of samples
            found = [each if all(each.layer_rows.values()) else _without_layers(each) for each in found]
        whole = found[0] if len(found) == 1 else joined(found, x)
        zero = int((maps == 0).flatten(1).all(1).sum())
        if zero:
            whole.notes["the map is zero: nothing that it shows speaks for the target"] = zero
        self.explanation, self.outputs = whole, whole.output
        return maps.cpu().numpy()

    def _explained(self, x: Tensor, targets: Any) -> Explanation:
        try:
            with self._layers.noting():
                return self._explainer.explain(x, self._target(targets, len(x)), passes=self._passes)
        except ConstantScoreError as error:
            if targets is None or isinstance(targets, Tensor):
                raise
            raise TargetError(
                "targets: they return the same, whatever the picture is. A target of boxes does where none of its "
                "boxes, with their labels, is among those that are found: give boxes and labels of the model's own "
                f"output, in pixels. ({error})"
            ) from error

    def _read(self, found: Explanation, x: Tensor) -> Tensor:
        """The maps of an explanation, from 0 to 1."""
        if self.target_layers is None:
            whole = found.relevance.sum(1)
            one = smoothed(whole) if whole.ndim == 3 else whole
        else:
            one = self._layers.read(found, x)
        return from_0_to_1(one)

    def _smoothed_by_augmentation(self, x: Tensor, targets: Any) -> np.ndarray[Any, Any]:
        ttach = peer("ttach")
        changes = self.tta_transforms or ttach.Compose([ttach.HorizontalFlip(), ttach.Multiply(factors=[0.9, 1, 1.1])])
        maps = []
        for change in changes:
            found = torch.from_numpy(self._map(change.augment_image(x), targets))
            maps.append(change.deaugment_mask(found.unsqueeze(1))[:, 0].numpy())
        mean: np.ndarray[Any, Any] = np.mean(np.stack(maps), axis=0)
        return mean


def _without_layers(found: Explanation) -> Explanation:
    return replace(found, layers={}, layer_rows={})


def _is_theirs(target: Any, name: str) -> bool:
    """Whether a target is pytorch-grad-cam's of that name: another's may compute anything."""
    kind = type(target)
    return kind.__name__ == name and kind.__module__.startswith("pytorch_grad_cam")


def _in_known_operations(target: Callable[[Any], Tensor]) -> Callable[[Any], Tensor]:
    """A target; ``ClassifierOutputReST`` as the same number without a loss, of which there is no relevance."""
    if not _is_theirs(target, "ClassifierOutputReST"):
        return target
    category = target.category  # type: ignore[attr-defined]
    return lambda scores: scores[category] + scores.log_softmax(-1)[category]


def _of_samples(output: Any, batch: int) -> Sequence[Any]:
    """A model's output for each sample, as targets take it: its scores, or an object of a list of objects."""
    if isinstance(output, (list, tuple)) and len(output) == batch and not isinstance(output[0], Tensor):
        return output
    return list(logits_of(output).unbind(0))


def _as_explained(model: nn.Module) -> nn.Module:
    """The model, or what can be explained in its place."""
    if not type(model).__module__.startswith("torchvision.models.detection"):
        return model
    from hilrp.compat.detections import Detections

    return Detections(model)
