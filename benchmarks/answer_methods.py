"""Maps of words of an answer, by hilrp and by other methods, each written from its paper's description.

A method is a function from a `Case` to a map ``[H,W]`` for each of its words. Those of others were made for larger
models of the same form; what they look at is the decoder's attention, its states, or what happens when parts of the
picture are covered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

import hilrp
from hilrp.answers.asked import Asked
from hilrp.answers.contrasts import contrasts
from hilrp.answers.request import request_of
from hilrp.answers.tokens import Span
from hilrp.models.libraries.loaded import Loaded

#: Cells along each side that a picture is covered by.
CELLS = 8


@dataclass(frozen=True)
class Case:
    """A model that has answered a question about a picture.

    Attributes:
        loaded: The model.
        picture: The picture.
        question: The question.
        answer: The answer, as text.
        spans: The words of it that are explained.
    """

    loaded: Loaded
    picture: Any
    question: str
    answer: str
    spans: tuple[Span, ...]

    @cached_property
    def asked(self) -> Asked:
        """The model as a function of pixels and embeddings."""
        request = request_of(self.loaded.model, self.loaded.processor, self.picture, self.question, None)
        ids = request.tokenizer(self.answer, add_special_tokens=False)["input_ids"]
        return Asked.of(self.loaded.model, request, ids)

    @cached_property
    def target(self) -> Any:
        """The scores of the words, as hilrp explains them."""
        asked = self.asked
        return contrasts(asked.request.tokenizer, asked.ids, self.spans, asked.logits, None)[0]

    def scores(self, inputs: Any) -> list[float]:
        """The scores of the words on other inputs, by a plain pass."""
        with torch.no_grad():
            found: list[float] = self.target(self.asked.module(**inputs)).tolist()
        return found

    @property
    def pixels(self) -> Tensor:
        """``[1,3,H,W]``."""
        found: Tensor = self.asked.request.inputs["pixel_values"]
        return found

    @property
    def sequence(self) -> Tensor:
        """The tokens of prompt and answer, less the last."""
        prompt = self.asked.request.inputs["input_ids"]
        return torch.cat([prompt, prompt.new_tensor([self.asked.ids[:-1]])], 1)

    @property
    def places(self) -> Tensor:
        """Where the patches of the picture are in that."""
        return (self.sequence[0] == self.loaded.model.config.image_token_id).nonzero().flatten()  # type: ignore[union-attr]

    def rows(self, span: Span) -> list[int]:
        """Where the states are that predict the tokens of a word."""
        before = self.asked.request.inputs["input_ids"].shape[1] - 1
        return [before + i for i in range(span.start, span.stop)]

    def drawn(self, values: Tensor) -> Tensor:
        """What is known of patches ``[N]``, over the picture ``[H,W]``."""
        side = round(len(values) ** 0.5)
        size = self.pixels.shape[-2:]
        grid = values.detach().reshape(1, 1, side, side).float()
        return F.interpolate(grid, size, mode="bilinear", align_corners=False)[0, 0]

    def likelihoods(self, pixels: Tensor) -> Tensor:
        """How likely the tokens of each word are, in the mean, on other pictures ``[B,3,H,W]``: ``[B,words]``."""
        model: Any = self.loaded.model
        asked = self.asked
        with torch.no_grad():
            logits = model(self.sequence.expand(len(pixels), -1), pixels).logits[:, -len(asked.ids) :]
        own = logits.softmax(-1).gather(2, torch.tensor(asked.ids).expand(len(pixels), -1)[..., None])[..., 0]
        return torch.stack([own[:, span.start : span.stop].mean(1) for span in self.spans], 1)

    def covered(self, kept: Tensor) -> Tensor:
        """The picture with some of its cells ``[B,cells,cells]``, and its mean colour in place of the others."""
        side = self.pixels.shape[-1] // kept.shape[-1]
        mask = kept.repeat_interleave(side, 1).repeat_interleave(side, 2)[:, None].to(self.pixels)
        mean = self.pixels.mean((2, 3), keepdim=True)
        return self.pixels * mask + mean * (1 - mask)


Method = Callable[[Case], list[Tensor]]


def explained(case: Case, **options: Any) -> hilrp.Answer:
    """The answer, explained by hilrp."""
    spans = [(span.start, span.stop) for span in case.spans]
    return hilrp.explain_answer(
        case.loaded.model, case.loaded.processor, case.picture, case.question, case.answer, explain=spans, **options
    )


def relevance(**options: Any) -> Method:
    """hilrp, with some options."""

    def maps(case: Case) -> list[Tensor]:
        return [word.maps[0].float() for word in explained(case, **options).words]

    return maps


def gradient_times_input(case: Case) -> list[Tensor]:
    """The gradient of each word's score, times the pixels."""
    asked = case.asked
    pixels = case.pixels.clone().requires_grad_()
    scores = case.target(asked.module(**asked.input | {"image": {"pixel_values": pixels[None]}}))
    found = []
    for score in scores:
        (gradient,) = torch.autograd.grad(score, pixels, retain_graph=True)
        found.append((gradient * pixels).detach()[0].sum(0))
    return found


def grad_cam(case: Case) -> list[Tensor]:
    """Grad-CAM on the patches that the tower of pictures ends with."""
    kept: list[Tensor] = []
    model: Any = case.loaded.model
    hook = model.visual.norm.register_forward_hook(lambda module, args, output: kept.append(output))
    try:
        asked = case.asked
        pixels = case.pixels.clone().requires_grad_()
        scores = case.target(asked.module(**asked.input | {"image": {"pixel_values": pixels[None]}}))
    finally:
        hook.remove()
    features, found = kept[-1], []
    for score in scores:
        (gradient,) = torch.autograd.grad(score, features, retain_graph=True)
        weights = gradient[0, 1:].mean(0)
        found.append(case.drawn((features[0, 1:] * weights).sum(1).clamp(min=0)))
    return found


class Attention(TorchFunctionMode):
    """Notes the attention of each layer, ``[heads,L,L]``, as it is computed."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            q, k = args[0], args[1]
            scores = q @ k.mT / q.shape[-1] ** 0.5
            if kwargs.get("is_causal"):
                scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
            self.found.append(scores.softmax(-1)[0].detach())
        return func(*args, **kwargs)


def _attention(case: Case) -> Tensor:
    """That of the decoder, ``[layers,heads,L,L]``."""
    model: Any = case.loaded.model
    with torch.no_grad(), Attention() as noted:
        model(case.sequence, case.pixels)
    return torch.stack([each for each in noted.found if each.shape[-1] == case.sequence.shape[1]])


def last_attention(case: Case) -> list[Tensor]:
    """How much the last layer attends to each patch where a word is predicted, over its heads."""
    found = _attention(case)[-1].mean(0)
    return [case.drawn(found[case.rows(span)].mean(0)[case.places]) for span in case.spans]


def rollout(case: Case) -> list[Tensor]:
    """Attention rollout through the decoder: each layer half of attention, half of what is handed on (2005.00928)."""
    layers = _attention(case).mean(1)
    whole = torch.eye(layers.shape[-1])
    for layer in layers:
        whole = (0.5 * layer + 0.5 * torch.eye(layers.shape[-1])) @ whole
    return [case.drawn(whole[case.rows(span)].mean(0)[case.places]) for span in case.spans]


def token_activation(case: Case) -> list[Tensor]:
    """The token activation map (2506.23270): where states of patches speak for the word, less what earlier words claim.

    A patch's activation is the word's logit at its state. The maps of earlier tokens, weighed by how far their own
    states speak for the word, are taken away, scaled by least squares; then each window of three by three is averaged
    by rank.
    """
    model: Any = case.loaded.model
    kept: list[Tensor] = []
    hook = model.norm.register_forward_hook(lambda module, args, output: kept.append(output.detach()[0]))
    try:
        with torch.no_grad():
            model(case.sequence, case.pixels)
    finally:
        hook.remove()
    states, table, ids = kept[-1], model.words.weight.detach(), case.sequence[0]
    patches = states[case.places]
    words = [i for i in range(len(ids)) if i not in set(case.places.tolist())]
    found = []
    for span in case.spans:
        maps = []
        for row, token in zip(case.rows(span), case.asked.ids[span.start : span.stop], strict=True):
            own = (patches @ table[token]).clamp(min=0)
            context = [i for i in words if i <= row]
            weights = (states[context] @ table[token]).clamp(min=0)
            theirs = (patches @ table[ids[context]].T).clamp(min=0) @ weights / weights.sum().clamp(min=1e-12)
            scale = (own * theirs).sum() / theirs.square().sum().clamp(min=1e-12)
            maps.append(_by_rank((own - scale * theirs).clamp(min=0)))
        found.append(case.drawn(torch.stack(maps).mean(0)))
    return found


def _by_rank(values: Tensor) -> Tensor:
    """Means over windows of three by three, weighed by rank: the middle ones count most where a window is even."""
    side = round(len(values) ** 0.5)
    padded = F.pad(values.reshape(1, 1, side, side), (1, 1, 1, 1), mode="reflect")
    windows = F.unfold(padded, 3)[0].T.sort(1).values
    mean = windows.mean(1, keepdim=True)
    spread = windows.std(1, correction=0, keepdim=True) / mean.clamp(min=1e-12)
    kernel = torch.exp(-((torch.arange(9) - 4) ** 2) / (2 * spread.clamp(min=1e-3).square()))
    kernel = kernel / kernel.sum(1, keepdim=True)
    return (windows * kernel).sum(1) * (mean[:, 0] > 0)


def greedy_search(case: Case) -> list[Tensor]:
    """A search as EAGLE's (2509.22496): cells are shown one after the other, each the one that serves the word best.

    What serves is how likely the word is with those cells alone, and how unlikely without them. A cell is worth what it
    adds when its turn comes. It takes 4,096 passes a word for 64 cells, each with its opposite.
    """
    found = []
    for number in range(len(case.spans)):
        shown = torch.zeros(CELLS * CELLS, dtype=torch.bool)
        worth, before = torch.zeros(CELLS * CELLS), 0.0
        while not bool(shown.all()):
            left = (~shown).nonzero().flatten()
            trials = shown.repeat(len(left), 1)
            trials[torch.arange(len(left)), left] = True
            grids = torch.cat([trials, ~trials]).reshape(-1, CELLS, CELLS)
            likely = torch.cat([case.likelihoods(case.covered(part))[:, number] for part in grids.split(32)])
            gain = likely[: len(left)] + 1 - likely[len(left) :]
            best = int(gain.argmax())
            worth[left[best]] = float(gain[best]) - before
            before = float(gain[best])
            shown[left[best]] = True
        found.append(F.interpolate(worth.reshape(1, 1, CELLS, CELLS), case.pixels.shape[-2:])[0, 0])
    return found


def centre(case: Case) -> list[Tensor]:
    """A bell in the middle of the picture, whatever the word."""
    from hilrp.jobs.bench.methods.controls import bell

    height, width = case.pixels.shape[-2:]
    return [bell(height, width).float()] * len(case.spans)


def chance(case: Case) -> list[Tensor]:
    """Random numbers."""
    generator = torch.Generator().manual_seed(len(case.answer))
    return [torch.rand(case.pixels.shape[-2:], generator=generator) for _ in case.spans]


#: AttnLRP's rules (2402.05602), as LXT has them.
ATTNLRP = hilrp.Rules(linear="epsilon", attention="attnlrp")
#: Name -> method.
METHODS: dict[str, Method] = {
    "secant": relevance(),
    "secant, 8 passes": relevance(passes=8),
    "hilrp": relevance(rules="hilrp"),
    "AttnLRP": relevance(rules=ATTNLRP, audit="warn"),
    "gradient x input": gradient_times_input,
    "Grad-CAM": grad_cam,
    "last attention": last_attention,
    "rollout": rollout,
    "token activation": token_activation,
    "centre Gaussian": centre,
    "chance": chance,
    "greedy search": greedy_search,
}


def cells_of(relevance: Tensor, cells: int) -> Tensor:
    """Sums of a map over square cells, ``[cells * cells]``."""
    side = relevance.shape[-1] // cells
    return relevance.reshape(cells, side, cells, side).sum((1, 3)).flatten()


def curves(case: Case, maps: Sequence[Tensor], cells: int = CELLS) -> tuple[list[float], list[float]]:
    """How likely each word is, in the mean, while its strongest cells are covered, and while they alone are shown."""
    deletion, insertion = [], []
    for number, each in enumerate(maps):
        order = cells_of(each, cells).argsort(descending=True)
        place = order.argsort()
        steps = torch.arange(0, cells * cells + 1, 8)
        removed = (place[None] >= steps[:, None]).reshape(-1, cells, cells)
        likely = [case.likelihoods(case.covered(kept))[:, number] for kept in (removed, ~removed)]
        deletion.append(float(likely[0].mean()))
        insertion.append(float(likely[1].mean()))
    return deletion, insertion
