"""Explanations sent to where runs are kept: TensorBoard, Weights & Biases, MLflow, FiftyOne, and Lightning's loggers.

- `to_tensorboard`, `to_wandb`, `to_mlflow`: the map on the picture, a sentence, and figures, by step.
- `to_fiftyone`: the map itself, as a ``Heatmap`` on the samples of a data set.
- `hilrp.export.lightning.ExplainCallback`: explains the same pictures every so many epochs of a training.

Nothing is sent but what you send, to where you have set that package up. The packages are imported only where they are
used: ``pip install 'hilrp[export]'`` has all of them but FiftyOne, which brings a database.
"""

from hilrp.export.fiftyone import to_fiftyone
from hilrp.export.mlflow import to_mlflow
from hilrp.export.tensorboard import to_tensorboard
from hilrp.export.wandb import to_wandb

__all__ = ["to_fiftyone", "to_mlflow", "to_tensorboard", "to_wandb"]
