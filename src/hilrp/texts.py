"""Models of pictures and words: see `hilrp.attribution.texts`."""

from hilrp.attribution.texts import ImageText, ImageTower, Joint, ZeroShot, caption_embeddings, similarity

__all__ = ["ImageText", "ImageTower", "Joint", "ZeroShot", "caption_embeddings", "similarity"]
