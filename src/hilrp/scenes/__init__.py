"""Pictures made to order, in which the truth is known: see `Scenes`."""

from hilrp.scenes.objects import CLASSES
from hilrp.scenes.scene import VISIBLE, Image, Mask, Scene, Scenes, Thing

__all__ = ["CLASSES", "VISIBLE", "Image", "Mask", "Scene", "Scenes", "Thing"]
