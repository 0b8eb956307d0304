"""What the audit says: each message names the place, the operation, the reason and the remedy."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hilrp.errors import AuditError, ModelError


def place(path: str, module: nn.Module | None = None) -> str:
    """A module's path as the user knows it, with its class."""
    name = f"`{path}`" if path else "the model itself"
    return name if module is None else f"{name} ({type(module).__name__})"


def unknown_operation(func: Any, name: str, path: str, module: nn.Module | None) -> AuditError:
    """An operation that no primitive covers."""
    full = f"{getattr(func, '__module__', None) or 'torch.Tensor'}.{name}".replace(
        "torch._C._nn", "torch.nn.functional"
    )
    return AuditError(
        f"No rule for the operation `{name}` in {place(path, module)}: it lies on the way from the input to the score, "
        "and its raw gradient need not conserve relevance. Tell hilrp what it is, for instance\n"
        f'    hilrp.register({full}, "activation")   # elementwise; or "reindexing", "gate", "stop", or a surrogate function\n'
        'or let it run on its raw gradient with audit="warn".'
    )


def hidden_operation(tensor: Tensor, path: str, consumer: str) -> AuditError:
    """A tensor that came out of code that the engine can't see into."""
    origin = tensor.grad_fn.name() if tensor.grad_fn is not None else "unknown"
    kind = (
        "a custom autograd.Function"
        if "Backward" in origin and "Torch" not in origin and not origin[0].isdigit()
        else "compiled code"
    )
    native = origin[-1].isdigit() or origin.startswith("torch::")
    source = "code that was scripted or compiled" if native else kind
    return AuditError(
        f"A tensor that `{consumer}` uses in {place(path)} depends on the input through operations that hilrp did not see: "
        f"it was made by {source} (autograd node {origin}). Its gradient isn't a conserving rule. Give the module that "
        "calls it a rule of its own, for instance\n"
        '    hilrp.register(TheModuleClass, "activation")   # or a surrogate function(module, x)\n'
        "or use the plain Python form of that code (many libraries have a switch for it), or accept the raw gradient with "
        'audit="warn".'
    )


def check_randomness(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module | None, path: str
) -> None:
    """Dropout and batch statistics make the output of one sample depend on chance or on the others."""
    if name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"):
        p, training = (
            args[1] if len(args) > 1 else kwargs.get("p", 0.5),
            args[2] if len(args) > 2 else kwargs.get("train", True),
        )
        if training and p > 0:
            raise ModelError(f"Dropout is active in {place(path, module)}. Call model.eval() before explaining.")
    if name == "batch_norm" and args[5]:
        raise ModelError(
            f"Batch normalisation in {place(path, module)} uses the statistics of the batch, so that samples explain each other. "
            "Call model.eval() before explaining; a layer without running statistics can't be explained."
        )
    if name == "scaled_dot_product_attention" and (args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)) > 0:
        raise ModelError(f"Attention dropout is active in {place(path, module)}. Call model.eval() before explaining.")


def training_mode(path: str, module: nn.Module) -> ModelError:
    """A layer that behaves differently in training."""
    return ModelError(
        f"The model is in training mode: {place(path, module)} would use chance or the statistics of the batch. "
        "Call model.eval() before explaining."
    )
