"""The sections of a report: which figures stand together, and how to read them."""

from __future__ import annotations

from dataclasses import dataclass

from hilrp.jobs.bench.context import CELLS
from hilrp.jobs.bench.metrics.removals import REMOVALS
from hilrp.jobs.bench.over_removals import AGREEMENT


@dataclass(frozen=True)
class Section:
    """A part of the report.

    Attributes:
        title: Its heading.
        text: What is measured, and how to read it.
        figures: Figure -> 1 if larger is better, -1 if smaller is, 0 if neither.
    """

    title: str
    text: str
    figures: dict[str, int]


SECTIONS = (
    Section(
        "Pointing Game",
        "How often the strongest pixel lies on the object. Where several pixels are the strongest, the part of them "
        "that does. The controls look at no model.",
        {"pointing": 1},
    ),
    Section(
        "Relevance mass, average precision, IoU",
        "Energy excess: the part of the positive relevance on the object, less the part of the picture that it "
        "covers. Average precision: how well the map tells the object's pixels from the others. IoU: of the object "
        "with as many of the strongest pixels as it has.",
        {"energy excess": 1, "average precision": 1, "IoU": 1},
    ),
    Section(
        "Grid pointing game",
        "Pictures of different classes in one, each shrunk into a cell: the part of a class's positive relevance that "
        "lies in its own cell, in the mean over the classes of a grid (Böhle et al., 2021). By chance it is 0.25, and "
        "0.11 with 3 x 3 cells. The model classifies each picture correctly, and sees all classes in the grid as well "
        "as in any that was tried.",
        {"grid pointing (2 x 2)": 1, "grid pointing (3 x 3)": 1},
    ),
    Section(
        "Conservation",
        "Of relevance methods: the sum of the map relative to the explained score (median; 1 is exact), and the part "
        "of the score that the books can't account for (0 is exact).",
        {"pixels' share": 0, "residual": -1},
    ),
    Section(
        "Agreement with Shapley values",
        "Spearman correlation, over segments of the picture (the cells of a grid, unless superpixels or objects were "
        "asked for), of the map's sum with sampled Shapley values of the score. LIME fits a linear model to the same "
        "grid and the same mean colour, and Occlusion and RISE put the same colour: they are close to this reference "
        "by construction.",
        {"Shapley agreement": 1},
    ),
    Section(
        "Agreement with Shapley values, as in the paper",
        "The same on superpixels (SLIC, about as many as the grid has cells), of the first 50 images with 64 "
        "permutations each. The paper doesn't say how many segments it has, nor what is put where one is taken away: "
        "here it is the image's mean colour.",
        {"Shapley agreement (as in the paper)": 1},
    ),
    Section(
        "Agreement with Shapley values over four removals",
        "Shapley values depend on what is put where a cell is taken away. Here it is the image's mean colour, a blur, "
        "black, and the image's own pixels shuffled, on cells that no method uses: Voronoi cells of 45 random points, "
        "and about 60 superpixels. Spearman correlation of the map's sums over the cells with each, and the mean of "
        "the four. The last row is the ceiling: how well the Shapley values of each removal agree with those of the "
        "others.",
        {f"{AGREEMENT} ({kind})": 1 for kind in CELLS}
        | {f"Shapley agreement, {removal} (Voronoi)": 1 for removal in REMOVALS},
    ),
    Section(
        "Calibration",
        "The part of the positive relevance that lies on the object, of sums over cells, less the same part of the "
        "positive Shapley values of the model: what the map says of the object beside what the model makes of it. "
        "Calibration is the size of the difference, in the mean over the four removals; the difference itself is above "
        "zero where a map exaggerates the object.",
        {f"calibration ({kind})": -1 for kind in CELLS} | {f"energy above the model's ({kind})": 0 for kind in CELLS},
    ),
    Section(
        "The true effect of an object",
        "In scenes: Spearman correlation, over the objects of a scene, of the relevance on each with what the score "
        "loses when that object is taken out of the picture.",
        {"true effect": 1},
    ),
    Section(
        "Pixel flipping",
        "Area under the score while pixels are replaced by the mean colour: most relevant first (MoRF, smaller is "
        "better), least relevant first (LeRF, larger), and the difference. Images that score no better than their "
        "mean colour are left out.",
        {"flip": 1, "morf": -1, "lerf": 1},
    ),
    Section(
        "Insertion and deletion",
        "Area under the class's probability while the most relevant pixels come first into the blurred picture "
        "(insertion, larger is better), or are replaced by zero (deletion, smaller is better), as RISE publishes them.",
        {"insertion": 1, "deletion": -1},
    ),
    Section(
        "ROAD",
        "Pixels become the weighted mean of their neighbours, and a little noise: no outline tells the model what was "
        "removed (Rong et al., 2022). ROAD is half the difference of the class's probability, least relevant first "
        "less most relevant first, in the mean over the removed parts; accuracy is at how many of them the model still "
        "says the class.",
        {"ROAD": 1, "ROAD accuracy, MoRF": -1, "ROAD accuracy, LeRF": 1},
    ),
    Section(
        "SaCo",
        "Pixels are sorted into groups by their relevance, and each group alone is replaced by the mean colour. Of "
        "each pair of groups the difference of their relevance counts for a map if the more relevant one loses more of "
        "the class's probability, and against it if not: from -1 to 1 (Wu et al., 2024).",
        {"SaCo": 1},
    ),
    Section(
        "Faithfulness Correlation",
        "Correlation, over random subsets of pixels, of their relevance with what the score loses when they are "
        "replaced by the mean colour: 224 single pixels (Quantus's number), and a tenth of the model's patches.",
        {"faithfulness correlation (pixels)": 1, "faithfulness correlation (patches)": 1},
    ),
    Section(
        "Class sensitivity",
        "In scenes with several objects: how alike (Spearman) the maps of two classes are, and how often each of the "
        "two has more of its mass on its own object than on the other's.",
        {"class sensitivity": -1, "moves to the other object": 1},
    ),
    Section(
        "Sanity check",
        "How alike (size of the Spearman correlation) maps are before and after weights are shuffled: a map that "
        "stays the same doesn't depend on what the model has learned.",
        {
            "sanity, cascading: head": -1,
            "sanity, cascading: upper half": -1,
            "sanity, cascading: all": -1,
            "sanity, independent: one layer": -1,
        },
    ),
    Section(
        "Equivariance",
        "How alike (Spearman) the map of a shifted picture and the shifted map are: the mean over cyclic shifts by "
        "an eighth and a quarter of the picture. The models themselves are not equivariant.",
        {"equivariance": 1},
    ),
    Section(
        "Misclassified samples",
        "Where the model is wrong: the energy excess, on the true object, of the map of the class that it says, and "
        "of the true class.",
        {"misclassified: predicted class": 0, "misclassified: true class": 0},
    ),
    Section(
        "Cost",
        "Images that go through the model for one map; time and (on a GPU) peak memory relative to a plain forward "
        "and backward pass.",
        {"forward passes": -1, "time ratio": -1, "memory ratio": -1},
    ),
)


#: What is shown of rule sets and gammas beside each other.
RULES = Section(
    "Rules and gamma",
    "HiLRP with other rules and other gammas. `hilrp` is gamma 0.25 with conservation-preserving attention; `secant` "
    "is relative to each image's mean colour.",
    {
        "pointing": 1,
        "energy excess": 1,
        "pixels' share": 0,
        "residual": -1,
        "Shapley agreement": 1,
        f"{AGREEMENT} (Voronoi)": 1,
        "calibration (Voronoi)": -1,
        "flip": 1,
    },
)


#: What is set against each other image by image.
PAIR = ("secant", "hilrp")
PAIRED = Section(
    "Secant against the paper's preset",
    "HiLRP, secant less HiLRP: means of the differences on the same images with their intervals. Marked as best or "
    "worst is a difference whose whole interval is better or worse.",
    {
        name: better
        for section in SECTIONS
        if section.title not in ("Conservation", "Cost")
        for name, better in section.figures.items()
        if better
    },
)


#: Figures whose rankings of methods are set beside each other.
COMPARED = Section(
    "Where a ranking depends on the figure",
    "Each figure ranks the methods that look at the model. Spearman correlation of the rankings of two figures, in the "
    "mean over the models: 1 means that both rank alike, 0 that one says nothing of the other, below zero that they "
    "contradict each other.",
    {
        name: better
        for section in SECTIONS
        for name, better in section.figures.items()
        if name
        in (
            "pointing", "energy excess", "average precision", "grid pointing (2 x 2)", "grid pointing (3 x 3)",
            "Shapley agreement", f"{AGREEMENT} (Voronoi)", f"{AGREEMENT} (superpixels)", "calibration (Voronoi)",
            "true effect", "flip", "insertion", "deletion", "ROAD", "SaCo", "faithfulness correlation (pixels)",
            "faithfulness correlation (patches)", "class sensitivity", "sanity, cascading: all", "equivariance",
        )
    },
)  # fmt: skip
