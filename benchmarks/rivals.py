"""What ``alternatives.py`` sets beside taftcache: fine-tuning by AdamW, of one block, of low-rank factors, of all.

``Case`` is one data set through one network; ``rival`` chooses a rate and trains.
"""

from __future__ import annotations

import argparse
import math
import shutil
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from record import Kept, timed
from torch import Tensor, nn

import taftcache
from taftcache import FeatureStore, load_recipe
from taftcache.backbone.model import load_backbone
from taftcache.backbone.preprocess import Preprocess
from taftcache.backbone.sources.opening import open_source
from taftcache.model.component import read_base
from taftcache.recipe import Recipe
from taftcache.stages.look.probe import EVERY, best_of

BATCH, WEIGHT_DECAY, LARGEST_NORM = 32, 0.01, 1.0
APART, MOST_FURTHER = 4, 2  # of the rates; of those that are tried beyond the first three
SHARDS = 10
DEIT = ("backbone.model=deit_tiny_patch16_224", "backbone.weights=${TAFTCACHE_DATA}/deit_tiny_patch16_224.safetensors")
DATA: dict[str, tuple[str, tuple[str, ...], int]] = {  # recipe, what differs from it, epochs
    "digits": ("quickstart", ("forget.samples=[]",), 5),
    "caltech101": ("caltech101", (), 10),
    "cifar10": ("cifar10", (*DEIT, "data.limit=3000"), 10),
}


@dataclass(frozen=True)
class Rival:
    """A training by AdamW: where its rows come from, the rates to choose from, and its epochs over the usual ones.

    fresh: whether a block that is drawn anew is tried beside the pre-trained one, the paper's PT = F.
    """

    rows: str
    rates: tuple[float, ...]
    longer: int = 1
    fresh: bool = False


RIVALS = {
    "last block": Rival(
        "tokens", (2.5e-4, 1e-3, 4e-3), longer=3, fresh=True
    ),  # an epoch is cheap without the other blocks
    "lora": Rival("pixels", (5e-4, 2e-3, 8e-3)),
    "all": Rival("pixels", (5e-5, 2e-4, 8e-4)),
}


# What init drafts, over what a recipe says.
DRAFTED = (
    *("backbone.features=every block", "tangent.blocks=0", "tangent.init=zero", "tangent.reset_block=false"),
    *("objective.ridge=auto", "solver.tolerance=auto", "store.cache=auto"),
)


def extracted(recipe: Recipe) -> dict[str, float]:
    """Seconds of an extraction, all of it at once: what an interrupted run left is no measure of the whole."""
    shutil.rmtree(recipe.store_path, ignore_errors=True)
    return timed(lambda: taftcache.extract(recipe))[1]


def added(*seconds: dict[str, float]) -> dict[str, float]:
    """Seconds of several parts."""
    return {kind: sum(part[kind] for part in seconds) for kind in ("clock", "processor")}


class LastBlock(nn.Module):
    """A vision transformer of timm's from the tokens [n,t,d] that enter its last block, of which the head reads the
    class token alone: so only that one's query, MLP and norm are computed."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        model.requires_grad_(False)
        for part in (model.blocks[-1], model.norm, model.fc_norm, model.head):
            part.requires_grad_(True)

    def forward(self, tokens: Tensor) -> Tensor:
        block: Any = self.model.blocks[-1]
        attention, (n, _, d), heads = block.attn, tokens.shape, block.attn.num_heads
        rows = block.norm1(tokens)
        query, key, value = attention.qkv.weight.reshape(3, heads, -1, d)
        of_query, _, of_value = attention.qkv.bias.reshape(3, heads, -1)  # the keys' moves all scores of a head alike
        asked = attention.scale * (torch.einsum("nd,hcd->nhc", rows[:, 0], query) + of_query)
        looks = torch.einsum("nhd,ntd->nht", torch.einsum("nhc,hcd->nhd", asked, key), rows).softmax(2)
        seen = torch.einsum("nhd,hcd->nhc", torch.einsum("nht,ntd->nhd", looks, rows), value) + of_value
        row = tokens[:, 0] + block.ls1(attention.proj(seen.reshape(n, d)))
        row = row + block.ls2(block.mlp(block.norm2(row)))
        logits: Tensor = self.model.forward_head(self.model.norm(row)[:, None])
        return logits


class Case:
    """One data set through one network: its store of frozen features, its images, and what is kept of both.

    tokens, pixels: float16 [n,t,d] and uint8 [n,3,h,w] of the training rows, then of the held-out ones, in the order of
    ``labels`` [n]; ``held`` [n] tells which are held out.
    """

    def __init__(self, name: str, place: Path, args: argparse.Namespace) -> None:
        recipe, overrides, epochs = DATA[name]
        self.folder, self.epochs, self.args = place / name, args.epochs or epochs, args
        overrides = (*overrides, *args.set, "store.cache=tokens", f"store.shards={SHARDS}")
        self.recipe: Recipe = load_recipe(recipe, [*overrides, f"store.path={self.folder / 'store'}"])
        self._from = (recipe, overrides)
        self.kept = Kept(self.folder, recipe=[recipe, *overrides])
        self.prepared = {"tokens": self.kept.once("extraction", partial(extracted, self.recipe))}
        with FeatureStore(self.recipe.store_path) as store:
            assert store.held_out is not None
            groups = [*store.shards, store.held_out]
            self.ids = [sample for shard in groups for sample in shard.sample_ids]
            self.labels = torch.from_numpy(np.concatenate([np.asarray(s.labels, np.int64) for s in groups]))
            self.held = torch.arange(len(self.ids)) >= len(self.ids) - store.held_out.rows
            self.classes = len(store.classes)
            self.backbone = store.identity["backbone"]["model"]

    def drafted_store(self) -> tuple[Path, dict[str, float]]:
        """The store of what `taftcache init` drafts for the same images, and seconds of its extraction."""
        recipe, overrides = self._from
        drafted = load_recipe(recipe, [*overrides, *DRAFTED, f"store.path={self.folder / 'drafted'}"])
        return Path(drafted.store_path), self.kept.once("drafted", partial(extracted, drafted))

    @cached_property
    def tokens(self) -> Tensor:
        with FeatureStore(self.recipe.store_path) as store:
            assert store.held_out is not None
            groups = [*store.shards, store.held_out]
            blocks = [np.array(block.tokens) for shard in groups for block in shard.blocks(256)]
        return torch.from_numpy(np.concatenate(blocks))

    @cached_property
    def pixels(self) -> Tensor:
        file = self.folder / "pixels.npy"
        self.prepared["pixels"] = self.kept.once("decoding", lambda: timed(lambda: self._decode(file))[1])
        return torch.from_numpy(np.load(file, mmap_mode="c"))

    def _decode(self, file: Path) -> None:
        transform = self.preprocess
        places = {
            item.id: (source, k)
            for source in open_source(self.recipe.data)
            if source is not None
            for k, item in enumerate(source.items)
        }
        shape = (len(self.ids), *transform.image_shape)
        written = np.lib.format.open_memmap(file, mode="w+", dtype=np.uint8, shape=shape)
        for n, sample in enumerate(self.ids):
            source, k = places[sample]
            written[n] = transform.pixels(source.read(k)).numpy()
        written.flush()

    @cached_property
    def preprocess(self) -> Preprocess:
        return Preprocess(load_backbone(self.recipe.backbone, self.recipe.preprocess))

    def network(self, method: str, fresh: bool = False) -> nn.Module:
        """The pre-trained network with a new head, of which ``method`` trains what it does; ``fresh``: from a last
        block that is drawn as taftcache draws its own."""
        torch.manual_seed(self.args.seed)
        model: Any = load_backbone(self.recipe.backbone, self.recipe.preprocess).model.requires_grad_(True)
        model.reset_classifier(self.classes)
        if fresh:
            with FeatureStore(self.recipe.store_path) as store:
                spec = msgspec.structs.replace(self.recipe.tangent, reset_block=True, seed=self.args.seed)
                base = read_base(store, spec)
            drawn = {name: base.state[name] for name in base.state if name.startswith(base.config.blocks[-1])}
            assert not model.load_state_dict(drawn, strict=False).unexpected_keys
        if method == "last block":
            return LastBlock(model)
        if method == "lora":
            from peft import LoraConfig, get_peft_model  # ten seconds, for it brings transformers along

            model = get_peft_model(
                model, LoraConfig(r=8, lora_alpha=16, target_modules=["qkv"], modules_to_save=["head"])
            )
        assert isinstance(model, nn.Module)
        return model

    def batch(self, kind: str, rows: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """What the network takes of some rows, augmented where there is a ``generator``."""
        if kind == "tokens":
            return self.tokens[rows].float()
        images = self.pixels[rows]
        return self.preprocess.normalise(images if generator is None else augmented(images, generator))


def augmented(images: Tensor, generator: torch.Generator) -> Tensor:
    """Images [n,3,h,w], each flipped or not and shifted by up to an eighth of its side, which its reflection fills."""
    n, _, height, width = images.shape
    most = height // 8
    wide = nn.functional.pad(images.float(), (most,) * 4, mode="reflect").to(images.dtype)
    places = torch.randint(0, 2 * most + 1, (n, 2), generator=generator).tolist()
    flips = (torch.rand(n, generator=generator) < 0.5).tolist()
    cut = [one[:, y : y + height, x : x + width] for one, (y, x) in zip(wide, places, strict=True)]
    return torch.stack([one.flip(2) if flip else one for one, flip in zip(cut, flips, strict=True)])


def factor(step: int, steps: int) -> float:
    """Of the rate at a step from 0: up over the first tenth, then a half cosine down to zero."""
    warm = max(1, steps // 10)
    return (step + 1) / warm if step < warm else (1 + math.cos(math.pi * (step - warm) / max(1, steps - warm))) / 2


def trained(
    case: Case, method: str, fresh: bool, rate: float, epochs: int, rows: Tensor, tested: Tensor
) -> dict[str, Any]:
    """Which of the rows ``tested`` a training on ``rows`` (indexes, both) gets right, and the training's seconds."""
    kind, network = RIVALS[method].rows, case.network(method, fresh)
    order = torch.Generator().manual_seed(case.args.seed)
    moved = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(moved, lr=rate, weight_decay=WEIGHT_DECAY)
    steps = epochs * -(-len(rows) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, partial(factor, steps=steps))
    case.batch(kind, rows[:1])  # what is decoded or read once is none of the training

    def train() -> None:
        for _ in range(epochs):
            for few in torch.split(rows[torch.randperm(len(rows), generator=order)], BATCH):
                inputs = case.batch(kind, few, order if case.args.augment else None)
                optimiser.zero_grad()
                with torch.autocast("cpu", torch.bfloat16, enabled=case.args.bfloat16):
                    loss = nn.functional.cross_entropy(network(inputs), case.labels[few])
                loss.backward()
                nn.utils.clip_grad_norm_(moved, LARGEST_NORM)
                optimiser.step()
                schedule.step()

    network.train()
    _, seconds = timed(train)
    network.eval()
    with torch.no_grad():
        found = torch.cat([network(case.batch(kind, few)).argmax(1) for few in torch.split(tested, 64)])
    return {"right": (found == case.labels[tested]).int().tolist(), "seconds": seconds}


def rival(case: Case, method: str, kept: Kept) -> dict[str, Any]:
    """The choice of the rate, and of the block where there is one, then the training on all training rows; each
    training is kept."""
    asked = RIVALS[method]
    training, held = torch.nonzero(~case.held)[:, 0], torch.nonzero(case.held)[:, 0]
    choosing = torch.arange(len(training)) % EVERY == 0
    epochs = asked.longer * case.epochs
    tried: list[Any] = []
    choices: dict[bool, tuple[float, dict[float, float]]] = {}
    for fresh in (False, True)[: 1 + asked.fresh]:

        def score(rate: float, fresh: bool = fresh) -> float:
            work = partial(trained, case, method, fresh, rate, -(-epochs // 2), training[~choosing], training[choosing])
            tried.append(kept.once(f"{method}{' fresh' * fresh} {rate:g}", work))
            return float(np.mean(tried[-1]["right"]))

        choices[fresh] = best_of(asked.rates, score, APART, MOST_FURTHER)
    fresh = max(choices, key=lambda one: max(choices[one][1].values()))
    best, scores = choices[fresh]
    last = kept.once(f"{method} chosen", partial(trained, case, method, fresh, best, epochs, training, held))
    _ = case.pixels if asked.rows == "pixels" else None  # whose seconds may be kept
    again = {"how": "training from the start, for there is one model of all rows", **last["seconds"]}
    return {
        "right": last["right"],
        "chosen": {
            "rate": best,
            "scores": sorted(scores.items()),
            "at_end": best in (min(scores), max(scores)),
            **({"fresh": fresh, "other_scores": sorted(choices[not fresh][1].items())} if asked.fresh else {}),
        },
        "epochs": epochs,
        "augmented": case.args.augment and asked.rows == "pixels",
        "bfloat16": case.args.bfloat16,
        "seconds": {
            "prepare": case.prepared[asked.rows],
            "choose": added(*(found["seconds"] for found in tried)),
            "train": last["seconds"],
        },
        "shard": again,
        "sample": again,
    }
