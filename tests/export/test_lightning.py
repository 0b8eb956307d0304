"""The callback leaves a training as it is, explains when it is time to, and what it sends arrives."""

from __future__ import annotations

import csv
import os
import pickle
import random
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from helpers.optional import keep_to_oneself
from hilrp.util.errors import HilrpError, InputError, ModelError
from hilrp.util.peers import MissingPeerError

# Read when it is imported.
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
try:
    from hilrp.export import lightning as ours
except MissingPeerError as missing:
    pytest.skip(str(missing), allow_module_level=True)
from hilrp.export.lightning import ExplainCallback

pl = ours._pl
X = torch.randn(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))
Y = torch.arange(16) % 4


def seeded() -> None:
    """Begins all random numbers anew."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


def drawn() -> tuple[float, float, float]:
    """A random number of every kind."""
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


class Network(pl.LightningModule):
    """Trains with random numbers of every kind; a part of it is frozen, and stays in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).requires_grad_(False)
        layers = nn.ReLU(), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.Dropout(0.3), nn.Flatten()
        self.rest = nn.Sequential(*layers, nn.Linear(128, 4))
        self.stem.eval()
        self.switched = 0

    def train(self, mode=True):
        self.switched += 1
        super().train(mode)
        self.stem.eval()
        return self

    def forward(self, x):
        return self.rest(self.stem(x))

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self(x + 0.1 * sum(drawn())), y)

    def validation_step(self, batch, _):
        self(batch[0])

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)


def trained(*callbacks, epochs=3, module=None, **options):
    """A module after some epochs, always from the same seeds, and its trainer."""
    seeded()
    module = Network() if module is None else module
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    options = {"logger": False, "accelerator": "cpu", "num_sanity_val_steps": 0} | options
    trainer = pl.Trainer(max_epochs=epochs, callbacks=list(callbacks), **quiet, **options)
    loader = DataLoader(TensorDataset(X, Y), 4, shuffle=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(num_workers|in eval mode|treespec|logging interval).*")
        trainer.fit(module, loader, DataLoader(TensorDataset(X, Y), 8))
    return module, trainer


class Kept(ExplainCallback):
    """Keeps what would be sent, and what the module is like before and after."""

    def __init__(self, *given, **options):
        super().__init__(*given, **options)
        self.steps, self.states = [], []

    def on_train_epoch_end(self, trainer, module):
        before = self._state(module)
        super().on_train_epoch_end(trainer, module)
        self.states.append((before, self._state(module)))

    @staticmethod
    def _state(module):
        modes = [each.training for each in module.modules()]
        gradients = [None if p.grad is None else (id(p.grad), p.grad.clone()) for p in module.parameters()]
        return modes, gradients, [p.requires_grad for p in module.parameters()], module.switched

    def _send(self, trainer, explanation):
        self.steps.append((trainer.current_epoch, trainer.global_step))


def noisy(question):
    """A reference that draws from every source of random numbers."""
    return [torch.rand_like(question.x) + sum(drawn())]


def all_of(module, trainer):
    """Weights, statistics, and what the optimiser remembers."""
    held = [each["momentum_buffer"] for each in trainer.optimizers[0].state.values()]
    return [*module.state_dict().values(), *held]


# The training ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"reference": noisy}, {"passes": 2}, {"rules": "hilrp", "model": "rest.0"}])
def test_weights_are_the_same_bit_for_bit(options):
    x = torch.randn(2, 4, 6, 6) if "model" in options else X[:2]
    target = None if "model" not in options else (lambda output: output.flatten(1).sum(1))
    callback = Kept(x, target=target, strict=True, **options)
    alone, with_it = all_of(*trained()), all_of(*trained(callback))
    after = drawn()
    trained()
    assert after == drawn()
    assert len(alone) == len(with_it) > 10
    assert all(map(torch.equal, alone, with_it))
    assert [epoch for epoch, _ in callback.steps] == [0, 1, 2]


def test_without_its_care_they_would_not_be(monkeypatch):
    from contextlib import nullcontext

    monkeypatch.setattr(ours, "_isolated_rng", nullcontext)
    alone, with_it = all_of(*trained()), all_of(*trained(Kept(X[:2], reference=noisy, strict=True)))
    assert not all(map(torch.equal, alone, with_it))


def test_modes_and_gradients_are_as_they_were():
    callback = Kept(X[:2], strict=True)
    module, _ = trained(callback, limit_val_batches=0)  # a validation throws the gradients away
    for (modes, gradients, needed, switched), after in callback.states:
        assert (modes, needed, switched) == (after[0], after[2], after[3])
        assert True in modes
        assert False in modes
        assert any(each is not None for each in gradients)
        for one, other in zip(gradients, after[1], strict=True):
            assert one is other is None or (one[0] == other[0] and torch.equal(one[1], other[1]))
    assert not module.stem.training


def test_modules_are_evaluating_while_they_are_explained():
    seen = []

    def target(output):
        seen.append([each.training for each in module.modules()])
        return output[:, 0]

    module = Network()
    trained(Kept(X[:2], target=target, strict=True), module=module, epochs=1)
    assert seen
    assert not any(map(any, seen))


@pytest.mark.parametrize(("every", "epochs"), [(1, [0, 1, 2]), (2, [1]), (3, [2]), (4, [])])
def test_it_explains_every_so_many_epochs(every, epochs):
    callback = Kept(X[:2], every)
    trained(callback, num_sanity_val_steps=2)
    assert callback.steps == [(epoch, 4 * (epoch + 1)) for epoch in epochs]
    assert (callback.explanation is None) == (not epochs)


def test_only_rank_0_explains():
    callback = Kept(X[:2])
    callback.on_train_epoch_end(SimpleNamespace(is_global_zero=False, current_epoch=0), Network())
    assert callback.steps == []


def test_it_explains_what_the_module_has_become():
    import hilrp

    callback = Kept(X[:2], target=1)
    module, _ = trained(callback)
    wanted = hilrp.explain(module.eval(), X[:2], 1)
    assert torch.equal(callback.explanation.map, wanted.map)
    assert callback.explanation.verdicts == wanted.verdicts


def test_a_part_or_another_module_is_explained_instead():
    other = nn.Sequential(nn.Flatten(), nn.Linear(192, 2)).train()
    callback = Kept(X[:2], model=other, strict=True)
    trained(callback, epochs=1)
    assert callback.explanation.output.shape == (2, 2)
    assert all(each.training for each in other.modules())
    part = Kept(torch.randn(2, 4, 6, 6), model="rest", strict=True)
    trained(part, epochs=1)
    assert part.explanation.output.shape == (2, 4)


@pytest.mark.parametrize("precision", ["bf16-true", "64-true", "bf16-mixed"])
def test_the_batch_has_the_type_of_the_weights(precision):
    callback = Kept(X[:2], 1, 0, strict=True)
    module, _ = trained(callback, precision=precision, epochs=1)
    assert callback.explanation.input.dtype == next(module.parameters()).dtype


def test_a_compiled_module_is_explained_as_written():
    callback = Kept(X[:2], strict=True)
    trained(callback, module=torch.compile(Network(), backend="eager"), epochs=1)
    assert callback.explanation.verdicts[0] == "valid"


def test_both_names_of_lightning_are_known(monkeypatch):
    both = [pytest.importorskip(name) for name in ("lightning.pytorch", "pytorch_lightning")]
    other = next(each for each in both if each is not pl)

    class Small(other.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))

        def forward(self, x):
            return self.layers(x)

        def training_step(self, batch, _):
            return self(batch[0]).square().sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-3)

    assert ours._lightning() is pl
    callback = ExplainCallback(X[:2], strict=True)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    trainer = other.Trainer(fast_dev_run=True, accelerator="cpu", callbacks=[callback], **quiet)
    trainer.fit(Small(), DataLoader(TensorDataset(X, Y), 8))
    assert len(callback.explanation) == 2
    monkeypatch.delitem(sys.modules, pl.__name__)  # then the other is the one that is there
    assert ours._lightning() is other


# What fails -----------------------------------------------------------------------------------------------------


def test_what_fails_warns_once_and_the_training_goes_on():
    callback = Kept(X[:2], target=9)
    with pytest.warns(UserWarning, match="ExplainCallback") as said:
        module, trainer = trained(callback)
    found = [str(each.message) for each in said if "ExplainCallback" in str(each.message)]
    assert len(found) == 1
    assert found[0].startswith("ExplainCallback: no explanation was sent. TargetError: ")
    assert found[0].endswith("The training goes on; with strict=True this ends it.")
    assert all(map(torch.equal, all_of(module, trainer), all_of(*trained())))
    assert all(before[0] == after[0] for before, after in callback.states)


def test_a_logger_that_fails_does_not_end_it():
    class Full(pl.loggers.CSVLogger):
        def log_metrics(self, metrics, step=None):
            raise OSError("no space left")

    with pytest.warns(UserWarning, match="OSError: no space left"):
        _, trainer = trained(ExplainCallback(X[:2]), logger=Full("."), log_every_n_steps=100)
    assert trainer.current_epoch == 3


def test_if_it_is_strict_the_training_ends():
    callback = Kept(X[:2], target=9, strict=True)
    module = Network()
    with pytest.raises(HilrpError):
        trained(callback, module=module)
    assert module.rest.training


def test_a_path_that_leads_nowhere_is_named():
    with pytest.raises(InputError, match=r"^model='tail': the module has no such part\. Its parts are: stem, rest"):
        trained(Kept(X[:2], model="tail", strict=True), epochs=1)


def test_models_in_pieces_are_not_explained():
    strategy = type("FSDPStrategy", (), {})()
    trainer = SimpleNamespace(is_global_zero=True, current_epoch=0, strategy=strategy)
    with pytest.raises(ModelError, match=r"^With FSDPStrategy no process has the whole model"):
        Kept(X[:2], strict=True).on_train_epoch_end(trainer, Network())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"batch": [1, 2]}, "The input"),
        ({"every_n_epochs": 0}, "every_n_epochs=0: give a whole number, from 1"),
        ({"every_n_epochs": True}, "every_n_epochs=True"),
        ({"model": 3}, "model is a int: give a module, or the path of one"),
        ({"rules": "best"}, ".*best"),
        ({"samples": [5]}, "samples has 5: what is explained has samples from 0 to 1"),
    ],
)
def test_what_does_not_fit_is_named_at_once(options, said):
    with pytest.raises(InputError, match=f"^{said}"):
        ExplainCallback(**({"batch": X[:2]} | options))


def test_it_goes_to_other_processes():
    callback = pickle.loads(pickle.dumps(ExplainCallback(X[:2], 2, target=1, model="rest")))
    assert isinstance(callback, pl.Callback)
    assert (callback.every_n_epochs, callback.model, callback.target) == (2, "rest", 1)
    assert torch.equal(callback.batch, X[:2])


# Where it arrives -----------------------------------------------------------------------------------------------


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = pl.loggers.TensorBoardLogger(str(tmp_path))
    trained(ExplainCallback(X[:2], 2, target=1, tag="why", strict=True), logger=logger, epochs=4)
    read = EventAccumulator(logger.log_dir, size_guidance={"images": 0, "scalars": 0}).Reload()
    assert [each.step for each in read.Images("why/1/overlay")] == [8, 16]
    assert [each.step for each in read.Scalars("why/0/difference")] == [8, 16]
    assert not list(tmp_path.rglob("*.npz"))


def test_wandb(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    keep_to_oneself(monkeypatch, tmp_path)
    logger = pl.loggers.WandbLogger(save_dir=str(tmp_path), offline=True)
    callback = ExplainCallback(X[:2], target=1, samples=[1], strict=True)
    trained(callback, logger=logger, epochs=2)
    summary = logger.experiment.summary
    assert summary["trainer/global_step"] == 8
    assert summary["hilrp/1/score"] == pytest.approx(float(callback.explanation.score[1]))
    assert "hilrp/0/score" not in summary.keys()  # noqa: SIM118
    logger.experiment.finish()
    assert len(list(tmp_path.rglob("hilrp/1/overlay*.png"))) == 2


def test_mlflow(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    keep_to_oneself(monkeypatch, tmp_path)
    logger = pl.loggers.MLFlowLogger(tracking_uri=(tmp_path / "mlruns").as_uri())
    trained(ExplainCallback(X[:2], target=1, strict=True), logger=logger, epochs=2)
    client = logger.experiment
    assert [each.step for each in client.get_metric_history(logger.run_id, "hilrp/1/score")] == [4, 8]
    pictures = [each.path for each in client.list_artifacts(logger.run_id, "images") if each.path.endswith(".png")]
    assert len(pictures) == 4


def test_a_logger_without_pictures_has_figures_and_the_rest_are_files(tmp_path, caplog):
    logger = pl.loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    callback = ExplainCallback(X[:2], target=1, strict=True)
    with caplog.at_level("INFO"):
        trained(callback, logger=logger, epochs=2)
    rows = list(csv.DictReader(Path(logger.log_dir, "metrics.csv").read_text().splitlines()))
    assert [int(each["step"]) for each in rows if each["hilrp/1/score"]] == [4, 8]
    assert float(rows[-1]["hilrp/1/score"]) == pytest.approx(float(callback.explanation.score[1]))
    folder = Path(logger.log_dir, "hilrp")
    endings = ("details.png", "json", "npz", "png")
    assert {each.name for each in folder.iterdir()} == {f"step-{n}.{end}" for n in (4, 8) for end in endings}
    assert np.array_equal(np.load(folder / "step-8.npz")["map"], callback.explanation.map.numpy())
    said = [each.message for each in caplog.records if "no logger takes pictures" in each.message]
    assert said == [f"ExplainCallback: no logger takes pictures. Explanations are saved in {folder}."]


def test_without_a_logger_they_are_files(tmp_path):
    trained(ExplainCallback(X[:2], 3, strict=True), default_root_dir=tmp_path)
    assert (tmp_path / "hilrp" / "step-12.npz").exists()


def test_a_folder_of_another_machine_is_not_written_to():
    with pytest.raises(InputError, match=r"^s3://bucket is no folder of this machine"):
        ExplainCallback(X[:2])._folder(SimpleNamespace(loggers=[], default_root_dir="s3://bucket"))


def test_a_trial_run_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    callback = ExplainCallback(X[:2], strict=True)
    trained(callback, fast_dev_run=True, logger=True)
    assert callback.explanation is not None
    assert not list(tmp_path.iterdir())
