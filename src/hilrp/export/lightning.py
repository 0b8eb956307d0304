"""Lightning: a callback that explains the same samples every so many epochs, and leaves the training as it is.

Both names of the package are known, ``lightning`` and ``pytorch_lightning``.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

from torch import nn

from hilrp.attribution.chains import Chains
from hilrp.attribution.checks import check_input
from hilrp.attribution.explainer import Audit, Explainer
from hilrp.attribution.explanation import Explanation
from hilrp.export.mlflow import to_mlflow
from hilrp.export.records import EXTRA, checked_samples, records
from hilrp.export.tensorboard import to_tensorboard
from hilrp.export.wandb import values
from hilrp.method.rules import DEFAULT_RULES, AnyRules, Rules
from hilrp.targets import Target
from hilrp.util.errors import InputError, ModelError
from hilrp.util.nested import map_tensors
from hilrp.util.peers import MissingPeerError, imported


def _lightning() -> Any:
    """The Lightning that is imported already, else one that is installed."""
    names = ("lightning.pytorch", "pytorch_lightning")
    missing = None
    for name in sorted(names, key=lambda each: each not in sys.modules):
        try:
            return imported(name, EXTRA)
        except MissingPeerError as error:
            missing = missing or error
    assert missing is not None
    raise missing


_pl = _lightning()
#: Strategies under which no process has the whole model.
_SHARDED = {"FSDPStrategy", "ModelParallelStrategy"}


class ExplainCallback(_pl.Callback):  # type: ignore[misc, name-defined]
    """Explains a batch at the end of every so many epochs, and sends that to the trainer's loggers.

    Loggers of TensorBoard, Weights & Biases and MLflow get pictures. Others (``CSVLogger``) get figures alone: where no
    logger takes pictures, each explanation is saved as files (`Explanation.save`), in the folder ``hilrp`` beside the
    logger's, or in the trainer's ``default_root_dir``.

    The training stays as it is, bit for bit. For the moment of the explanation, modules are marked as evaluating (their
    ``train()`` and ``eval()`` are not called) and then marked as they were; random numbers of Python, numpy and torch
    go on where they were; gradients are not touched. Only the process of rank 0 explains.

    An explanation that fails warns, once for each message, and the training goes on.

    Args:
        batch: What to explain, in the form of the model's input; it is moved to where the model is.
        every_n_epochs: After how many epochs, again and again.
        target: What to explain: see `hilrp.explain`. By default what is predicted then; a class stays comparable.
        loaded: What `hilrp.load` returned: its colours and names of classes; or the names of the classes.
        rules: The rules, by name or as `hilrp.Rules`.
        reference: What relevance is relative to: see `hilrp.explain`.
        passes: How many passes to spend: see `hilrp.explain`.
        audit: ``"strict"`` fails where relevance could be lost, ``"warn"`` warns, ``"off"`` does neither.
        model: What to explain instead of the module's ``forward``: a part of it, by path (``"backbone"``), or another
            module (an average of the weights).
        samples: Which samples are sent; by default all.
        tag: What all names begin with.
        strict: An explanation that fails ends the training.

    Attributes:
        explanation: The last `hilrp.Explanation`.

    Example:
        >>> import torch
        >>> import lightning
        >>> callback = ExplainCallback(torch.randn(4, 3, 32, 32), every_n_epochs=5, target=0)
        >>> trainer = lightning.Trainer(max_epochs=20, callbacks=[callback], logger=False, enable_checkpointing=False)
        >>> callback in trainer.callbacks
        True
    """

    def __init__(
        self,
        batch: Any,
        every_n_epochs: int = 1,
        target: Target = None,
        *,
        loaded: Any = None,
        rules: AnyRules = DEFAULT_RULES,
        reference: Any = None,
        passes: int | Chains = 1,
        audit: Audit = "strict",
        model: nn.Module | str | None = None,
        samples: Sequence[int] | None = None,
        tag: str = "hilrp",
        strict: bool = False,
    ) -> None:
        super().__init__()
        chosen = checked_samples(samples, check_input(batch))
        self._sent: dict[str, Any] = {"tag": tag, "loaded": loaded, "samples": chosen}
        self._options: dict[str, Any] = {"rules": Rules.named(rules), "reference": reference, "audit": audit}
        if isinstance(every_n_epochs, bool) or not isinstance(every_n_epochs, Integral) or every_n_epochs < 1:
            raise InputError(f"every_n_epochs={every_n_epochs!r}: give a whole number, from 1.")
        if not isinstance(model, (nn.Module, str, type(None))):
            raise InputError(f'model is a {type(model).__name__}: give a module, or the path of one, model="backbone".')
        self.batch: Any = batch
        self.every_n_epochs: int = int(every_n_epochs)
        self.target: Target = target
        self.passes: int | Chains = passes
        self.model: nn.Module | str | None = model
        self.strict: bool = strict
        self.explanation: Explanation | None = None
        self._told: set[str] = set()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Explains, where it is time for it."""
        if not trainer.is_global_zero or (trainer.current_epoch + 1) % self.every_n_epochs:
            return
        failed = None
        # What is raised must not pass through isolate_rng: it would not put the states back.
        with _isolated_rng():
            try:
                self.explanation = self._explained(trainer, pl_module)
                self._send(trainer, self.explanation)
            except Exception as error:
                failed = error
        if failed is not None and self.strict:
            raise failed
        if failed is not None:
            self._tell(
                f"ExplainCallback: no explanation was sent. {type(failed).__name__}: {failed} The training goes on; "
                "with strict=True this ends it."
            )

    def _explained(self, trainer: Any, pl_module: Any) -> Explanation:
        strategy = trainer.strategy
        if {each.__name__ for each in type(strategy).__mro__} & _SHARDED or getattr(strategy, "zero_stage_3", False):
            raise ModelError(
                f"With {type(strategy).__name__} no process has the whole model. Explain a checkpoint afterwards, or "
                'train with strategy="ddp".'
            )
        model = self._model(pl_module)
        device = next((t.device for t in (*model.parameters(), *model.buffers())), pl_module.device)
        x = trainer.precision_plugin.convert_input(map_tensors(lambda t: t.to(device), self.batch))
        with _evaluating(model):
            # Nothing is recorded: a recording would keep memory that the training needs.
            return Explainer(model, **self._options, compile=False).explain(x, self.target, passes=self.passes)

    def _model(self, pl_module: nn.Module) -> nn.Module:
        """What is to be explained."""
        if not isinstance(self.model, str):
            return pl_module if self.model is None else self.model
        try:
            return pl_module.get_submodule(self.model)
        except AttributeError as error:
            names = ", ".join(name for name, _ in pl_module.named_children()) or "none"
            raise InputError(f"model={self.model!r}: the module has no such part. Its parts are: {names}.") from error

    def _send(self, trainer: Any, explanation: Explanation) -> None:
        step = trainer.global_step
        with_pictures = [self._log(each, explanation, step) for each in trainer.loggers]
        if any(with_pictures) or trainer.fast_dev_run:
            return
        folder = self._folder(trainer)
        folder.mkdir(parents=True, exist_ok=True)
        explanation.save(folder / f"step-{step}", self._sent["loaded"])
        message = f"ExplainCallback: no logger takes pictures. Explanations are saved in {folder}."
        if message not in self._told:
            self._told.add(message)
            _pl.utilities.rank_zero_info(message)

    def _log(self, logger: Any, explanation: Explanation, step: int) -> bool:
        """Sends an explanation to a logger, and says whether that takes pictures."""
        kinds = {each.__name__ for each in type(logger).__mro__}
        if "TensorBoardLogger" in kinds:
            to_tensorboard(logger.experiment, explanation, step, **self._sent)
        elif "WandbLogger" in kinds:  # it has the trainer's step beside its own
            logger.log_metrics(values(explanation, **self._sent), step)
        elif "MLFlowLogger" in kinds:
            to_mlflow(explanation, step, run=logger.run_id, client=logger.experiment, **self._sent)
        else:
            made = records(explanation, **self._sent, pictures=False)
            logger.log_metrics({name: value for each in made for name, value in each.named.items()}, step)
            return False
        return True

    def _folder(self, trainer: Any) -> Path:
        """Where explanations are saved as files. Not `trainer.log_dir`, which all processes have to ask for at once."""
        places = [getattr(each, name, None) for each in trainer.loggers for name in ("log_dir", "save_dir")]
        where = next(filter(None, places), trainer.default_root_dir)
        if "://" in str(where):
            raise InputError(
                f"{where} is no folder of this machine, where pictures could be saved. Add a logger that takes "
                "pictures, TensorBoardLogger."
            )
        return Path(where) / self._sent["tag"]

    def _tell(self, message: str) -> None:
        if message not in self._told:
            self._told.add(message)
            warnings.warn(message, stacklevel=2)


def _isolated_rng() -> Any:
    """Lightning's own: random numbers of Python, numpy and torch go on afterwards where they were."""
    return imported(f"{_pl.__name__}.utilities.seed", EXTRA).isolate_rng()


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Modules that train are marked as evaluating, and then as training again.

    ``eval()`` is not called, since modules may do more in it: LoRA's layers add to their weights, and subtract again.
    """
    trained = [module for module in model.modules() if module.training]
    try:
        for module in trained:
            module.training = False
        yield
    finally:
        for module in trained:
            module.training = True
