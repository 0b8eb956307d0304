"""What the audit says: each message names the place, the operation, the reason and the remedy."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hilrp.method.rules import REFERENCE_IS_DEFAULT
from hilrp.util.errors import AuditError, ModelError, TooLargeError


def place(path: str, module: nn.Module | None = None) -> str:
    """A module's path as the user knows it, with its class."""
    name = f"`{path}`" if path else "the model itself"
    return name if module is None else f"{name} ({type(module).__name__})"


def failed_forward(error: Exception, where: str, shapes: str) -> str:
    """The model, or a rule, raised."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    source = frame.tb_frame.f_globals.get("__name__", "") if frame is not None else ""
    # The original function runs there, and the zoo's models are models; anything else of ours that raises is a defect.
    originals = ("hilrp.method.call", "hilrp.engine.relative")
    if source.startswith("hilrp.") and source not in originals and not source.startswith("hilrp.zoo"):
        return f"hilrp failed by itself in {where} ({source}): {type(error).__name__}: {error}. Please report this."
    return (
        f"The model raised {type(error).__name__} in {where} on an input of shape {shapes}: "
        f"{str(error).rstrip('.') or 'no reason given'}. Check that the input has the shape, type and device that the "
        "model expects."
    )


def failed_backward(error: Exception) -> str:
    """The backward pass raised, or one that runs in the forward pass on the reference."""
    return (
        f"The backward pass failed with {type(error).__name__}: {error}. If the model uses gradient checkpointing, "
        "turn it off: what it runs again in the backward pass, the engine doesn't see."
    )


def is_of_reference(error: Exception) -> bool:
    """Whether an operation raised while it ran on the reference."""
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_globals.get("__name__") != "hilrp.engine.relative":
        frame = frame.tb_next
    return frame is not None


def failed_on_reference(error: Exception, where: str) -> str:
    """The model raised on the reference, and doesn't on the input."""
    return (
        f"The model raised {type(error).__name__} in {where} on the reference, though it runs on the input: "
        f"{str(error).rstrip('.') or 'no reason given'}. {REFERENCE_IS_DEFAULT}. Or give another reference=."
    )


def too_large(reason: str, shapes: str) -> TooLargeError:
    """Memory doesn't suffice for what was to be explained at once."""
    return TooLargeError(
        f"Memory doesn't suffice to explain an input of shape {shapes} at once ({reason.rstrip('.')}). Explain fewer "
        'samples at a time (batch="auto", or a number), let blocks run again (Explainer(recompute="auto")), or run '
        "the model in bfloat16 (torch.autocast)."
    )


def unknown_operation(func: Any, name: str, path: str, module: nn.Module | None, relative: bool) -> AuditError:
    """An operation that no primitive covers, or none that has a form relative to a reference."""
    hint = f" {REFERENCE_IS_DEFAULT}, and some operations have a rule there alone." if relative else ""
    return AuditError(
        f"No rule for the operation `{name}` in {place(path, module)}: it lies on the way from the input to the score, "
        "and its raw gradient need not conserve relevance. Tell hilrp what it is:\n"
        f"    hilrp.register({_public_name(func, name)}, rule)\n"
        'with rule "activation" if it is elementwise, "gate" or "stop" if it is a gate, "reindexing" if it moves, '
        "selects or sums, or a function that writes it in known operations. Or let it run on its raw gradient with "
        f'audit="warn".{hint}'
    )


def _public_name(func: Any, name: str) -> str:
    """An expression that names the function in a user's code."""
    if "::" in name:
        return f"torch.ops.{name.replace('::', '.')}"
    spaces = {"torch": torch, "torch.nn.functional": F, "torch.Tensor": torch.Tensor, "torch.linalg": torch.linalg}
    spaces |= {"torch.special": torch.special, "torch.fft": torch.fft}
    for space, module in spaces.items():
        for candidate in (name, name.partition("_")[2]):
            if candidate and getattr(module, candidate, None) is func:
                return f"{space}.{candidate}"
    return next(
        (f"{space}.{name}" for space, module in spaces.items() if hasattr(module, name)), f"torch.ops.aten.{name}"
    )


def hidden_operation(tensor: Tensor, path: str, consumer: str) -> AuditError:
    """A tensor that came out of code that the engine can't see into."""
    node = tensor.grad_fn
    origin = node.name() if node is not None else "unknown"
    if origin == "BackwardHookFunctionBackward":
        return AuditError(
            f"The module {place(path)}, or one around it, has a full backward hook (register_full_backward_hook), "
            "which may change gradients: relevance would be "
            'what the hook makes of it. Remove the hook (its handle has remove()), or accept that with audit="warn".'
        )
    function = getattr(node, "_forward_cls", None)
    # torch's own nodes end in a digit (MulBackward0); a custom function's is named after its class.
    custom = function is not None or origin.endswith("Backward")
    source = "a custom autograd.Function" if custom else "code that was scripted, compiled or mapped, or an extension's"
    registered = "TheModuleClass" if function is None else function.__name__
    return AuditError(
        f"A tensor that `{consumer}` uses in {place(path)} depends on the input through operations that hilrp did not "
        f"see: it was made by {source} (autograd node {origin}). Its gradient isn't a conserving rule. Give it, or "
        "the module that calls it, a rule of its own, for instance\n"
        f'    hilrp.register({registered}, "activation")   # or a surrogate function of the same arguments (a module '
        "comes first)\n"
        "or use the plain Python form of that code (many libraries have a switch for it), or accept the raw gradient "
        "with "
        'audit="warn".'
    )


def not_given(path: str, consumer: str) -> str:
    """A module that runs again uses a tensor of the pass that it wasn't called with."""
    return (
        f"`{consumer}` in {place(path)} uses a tensor that depends on the input and that the module around it wasn't "
        "called with (it was kept in an attribute, or in a closure). Such a module can't run again: leave it out of "
        "recompute=."
    )


def changed_gradient(path: str) -> AuditError:
    """A hook of the model's that changes gradients."""
    return AuditError(
        f"A hook on a tensor in {place(path)} changes gradients (register_hook): relevance would be what the hook "
        "makes of it, not what the rules say. "
        'Remove the hook, or accept that with audit="warn".'
    )


def function_that_writes(where: str) -> AuditError:
    """A custom function that writes to its input, under an engine that has nothing written to."""
    return AuditError(
        f"hilrp did not see into what {where} calls: a custom autograd.Function writes to its input (mark_dirty). "
        "Give the module that calls it a rule of its own (hilrp.register), or let the function return a new tensor."
    )


def unseen_write(tensor: Tensor, path: str, consumer: str) -> AuditError:
    """A tensor that was written to by code that the engine can't see into."""
    return AuditError(
        f"A tensor of the shape {tuple(tensor.shape)} that `{consumer}` uses in {place(path)} was written to by code "
        "that hilrp did not see (an extension, scripted code, another thread). Give the module that does so a rule "
        "of its own (hilrp.register), "
        'or let that code return a new tensor, or accept a wrong map with audit="warn".'
    )


def unseen_origin(places: list[str]) -> AuditError:
    """Tensors that depend on the input, and that the engine did not see being made."""
    return AuditError(
        f"Tensors that {_listed(places)} use depend on the input, but hilrp did not see how they were made: by numpy "
        "or another library, in another thread, or by an extension. They would count as constants. Compute them with "
        "torch in the thread that runs "
        "the model, give the module that makes them a rule of its own (hilrp.register), or accept that with "
        'audit="warn".'
    )


def unseen_state(names: list[str]) -> AuditError:
    """Parameters or buffers that hold what depends on the input."""
    return AuditError(
        f"{_listed(names)} of the model depends on the input, but hilrp did not see it being written (in another "
        "thread, by an extension, through `.data`). It would count as a constant. Compute it with torch in the thread "
        'that runs the model, and use the result, or accept that with audit="warn".'
    )


def backward_hook(path: str) -> AuditError:
    """A hook of the old kind on a module, which may change gradients."""
    return AuditError(
        f"{place(path)} has a hook on its gradients (register_backward_hook), which may change them: relevance would "
        'be what the hook makes of it, not what the rules say. Remove the hook, or accept that with audit="warn".'
    )


def forward_pre_hook(path: str, module: nn.Module) -> AuditError:
    """A hook that changes what a module is given, which is explained as one operation."""
    return AuditError(
        f"{place(path, module)} is explained as a whole (hilrp.register, recompute=), but a forward pre-hook of its "
        "own gives it other tensors than it was called with, and what the hook does can't be followed. Remove the "
        "hook, or do what it does in a module around this one."
    )


def graph_seen(path: str) -> str:
    """A model that looks at the graph of its tensors."""
    return f"what hooks on the nodes of the graph do: {place(path)} takes `grad_fn` of a tensor"


def unused_rules(key: str) -> str:
    """A module's rules that no operation had."""
    return (
        f"rules[{key!r}] were used by no operation: the modules that it fits did not run, or an earlier key fits them "
        "(a module may hand its weights to the one around it, as in nn.MultiheadAttention: name that)"
    )


def rules_left_out(key: str, paths: list[str]) -> str:
    """Modules that a key fits, and in which no operation had its rules."""
    some = ", ".join(map(repr, paths[:3])) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
    return (
        f"rules[{key!r}] were not used at {some}: these did not run, or on constants alone (a module may hand its "
        "weights to the one around it, as in nn.MultiheadAttention, which has its own rules: name that)"
    )


def carries_nothing(name: str) -> str:
    """A module whose relevance is to be kept runs on nothing that depends on what is explained."""
    return f"keep: what is at `{name}` does not depend on what is explained, and has no relevance"


def several_outputs(shapes: list[tuple[int, ...]]) -> str:
    """An output in which it isn't said which tensor holds the classes."""
    others = ", ".join(map(str, shapes[1:]))
    return (
        f"the output holds several tensors of scores: the first, of shape {shapes[0]}, is explained, not those of "
        f"{others} (target=lambda output: output[1][:, label] for another)"
    )


def other_score(plain: float, explained: float, sample: int) -> AuditError:
    """The explained score isn't that of the model."""
    return AuditError(
        f"The explained score of sample {sample} is {explained:.6g}, but the model itself gives {plain:.6g} on the "
        "same input: something in it runs differently under hilrp (code that hilrp does not see, and that reads what "
        "was written in place; a state that changes from call to call). Please report this if it is the model of a "
        "library."
    )


def other_class(plain: int, explained: int, sample: int) -> AuditError:
    """The explained class isn't the model's prediction."""
    return AuditError(
        f"The explained class of sample {sample} is {explained}, but the model itself predicts {plain} on the same "
        "input. Give the class as the target, and please report this if it is the model of a library."
    )


def false_reference(
    plain: float, followed: float, sample: int, read_outs: list[str], strangers: list[str]
) -> AuditError:
    """The reference's score isn't that of the model."""
    reasons = [
        f"numbers that the model reads out of its tensors ({_listed(read_outs)}) are the input's there, too"
        if read_outs
        else "",
        f"hilrp did not see how tensors that {_listed(strangers)} use were made" if strangers else "",
    ]
    reason = (
        "; ".join(filter(None, reasons))
        or "something in it isn't followed there (a state that changes from call to call)"
    )
    return AuditError(
        f"The score of sample {sample} on the reference would be {followed:.6g}, but the model itself gives "
        f"{plain:.6g} there: {reason}. The relevance would sum to a false difference. {REFERENCE_IS_DEFAULT}. Or keep "
        "those values in tensors and in this thread (torch.where instead of `if`, no item(), tolist() or float())."
    )


def other_shape(path: str, there: tuple[int, ...], here: tuple[int, ...]) -> ModelError:
    """A result that has another shape on the reference."""
    return ModelError(
        f"The model took another way on the reference than on the input: at {path or '(model)'} a result has the shape "
        f"{there} there and {here} here. {REFERENCE_IS_DEFAULT}. Or use a model whose control flow doesn't depend on "
        "the values of its input."
    )


def by_choice(name: str, path: str) -> str:
    """Numbers that were made of masks and indices."""
    return (
        f"what `{name}` in {place(path)} makes depends on the input through whole numbers or masks alone, and carries "
        "no relevance"
    )


def whole_numbers(name: str, path: str) -> str:
    """Whole numbers that are values."""
    return f"`{name}` in {place(path)} takes whole numbers that depend on the input, which carry no relevance"


def places(name: str, path: str) -> str:
    """Places to write to that depend on the input."""
    return f"`{name}` in {place(path)} writes to places that depend on the input; which ones carries no relevance"


def read_out(where: str) -> str:
    """Values that left torch."""
    return f"{where} reads numbers out of the pass: what the model makes of them counts as constant"


def _listed(places: list[str], most: int = 3) -> str:
    shown = list(dict.fromkeys(places))
    more = f" and {len(shown) - most} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + more


def differences(name: str, path: str, value: list[Tensor], surrogate: list[Tensor]) -> list[AuditError]:
    """A user's surrogate must have the shapes and, up to rounding, the values of the original."""
    where = f"The surrogate of `{name}` in {path or '(model)'}"
    shapes = [[tuple(t.shape) for t in each] for each in (value, surrogate)]
    if shapes[0] != shapes[1]:
        raise AuditError(f"{where} returns shapes {shapes[1]}; the original {shapes[0]}.")
    return [
        AuditError(f"{where} differs from the original by {float((v - s.detach()).abs().max()):.2g}.")
        for v, s in zip(value, surrogate, strict=True)
        if not torch.allclose(v, s.detach().to(v.dtype), rtol=1e-2, atol=1e-3 * float(v.abs().max()))
    ]


def check_randomness(
    name: str, args: tuple[Any, ...], kwargs: dict[str, Any], module: nn.Module | None, path: str
) -> None:
    """Dropout and batch statistics make the output of one sample depend on chance or on the others."""

    def argument(position: int, keyword: str, default: Any) -> Any:
        return args[position] if len(args) > position else kwargs.get(keyword, default)

    if name in _DROPOUT and argument(1, "p", 0.5) > 0 and argument(2, "train", True):
        raise ModelError(f"Dropout is active in {place(path, module)}. Call model.eval() before explaining.")
    if name == "bernoulli":
        raise ModelError(
            f"Chance is active in {place(path, module)}: `bernoulli` draws with probabilities that depend on the "
            "input. Use a threshold, or the probabilities themselves."
        )
    if name == "rrelu" and argument(3, "training", False):
        raise ModelError(
            f"The random slope of rrelu is active in {place(path, module)}. Call model.eval() before explaining."
        )
    if name == "scaled_dot_product_attention" and argument(4, "dropout_p", 0.0) > 0:
        raise ModelError(f"Attention dropout is active in {place(path, module)}. Call model.eval() before explaining.")
    if name == "batch_norm" and argument(5, "training", False):
        raise ModelError(
            f"Batch normalisation in {place(path, module)} uses the statistics of the batch, so that samples explain "
            "each other. Call model.eval() before explaining; a layer without running statistics can't be explained."
        )


_DROPOUT = ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout")


def training_mode(path: str, module: nn.Module) -> ModelError:
    """A layer that behaves differently in training."""
    return ModelError(
        f"The model is in training mode: {place(path, module)} would use chance or the statistics of the batch. "
        "Call model.eval() before explaining."
    )
