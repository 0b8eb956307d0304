"""transformers' models that answer in words, of pictures and text or of text alone, with their processors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers
from torch import nn
from transformers.models.auto.auto_factory import _get_model_class

from hilrp.models import checkpoint_files
from hilrp.models.libraries.loaded import Loaded, of_answers
from hilrp.models.libraries.recipe import download
from hilrp.util.errors import InputError
from hilrp.util.regular_files import printable

#: What an architecture's name ends with -> the class that loads it, and that of what makes its inputs.
_KINDS = {
    "ForConditionalGeneration": ("AutoModelForImageTextToText", "AutoProcessor"),
    "ForCausalLM": ("AutoModelForCausalLM", "AutoTokenizer"),
    "LMHeadModel": ("AutoModelForCausalLM", "AutoTokenizer"),
}


def answers(config: Any) -> bool:
    """Whether a model of that configuration answers in words."""
    return _kind(config) is not None


def _kind(config: Any) -> tuple[str, str] | None:
    for architecture in config.architectures or []:
        for ending, (model, processor) in _KINDS.items():
            if architecture.endswith(ending) and type(config) in getattr(transformers, model)._model_mapping:
                return model, processor
    return None


def load(name: str, config: Any, checkpoint: str | Path | None = None) -> Loaded:
    """A model of the hub or in a folder, with its own weights or those of a checkpoint.

    Args:
        name: The name on the hub, or the folder.
        config: Its configuration, of a model that `answers`.
        checkpoint: A file with other weights.
    """
    kinds = _kind(config)
    assert kinds is not None
    kind, maker = (getattr(transformers, each) for each in kinds)
    if checkpoint is None:
        model: Any = download(name, lambda: kind.from_pretrained(name, trust_remote_code=False))
    else:
        model = _with_weights(_get_model_class(config, kind._model_mapping), config, name, checkpoint)
    processor = download(name, lambda: maker.from_pretrained(name, trust_remote_code=False))
    full = f"transformers/{name}"
    return Loaded(full, model, of_answers(full), processor=processor)


def _with_weights(kind: Any, config: Any, name: str, checkpoint: str | Path) -> nn.Module:
    """A model with the weights of a file; transformers itself knows by which names they were saved."""
    state = dict(checkpoint_files.read(checkpoint))
    model: nn.Module
    model, found = kind.from_pretrained(
        None, config=config, state_dict=state, output_loading_info=True, ignore_mismatched_sizes=True
    )
    problems = [f"it lacks {each}" for each in sorted(found["missing_keys"])]
    problems += [f"the model has no {each}" for each in sorted(found["unexpected_keys"])]
    problems += [f"{each[0]} has another shape" for each in sorted(found["mismatched_keys"])]
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        raise InputError(
            f"checkpoint {printable(Path(checkpoint))} does not fit {name}: {problems[0]}{more}. Give the name of the "
            "model that it was saved from."
        )
    return model
