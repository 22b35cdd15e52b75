"""The model card of a saved model: front matter that model hubs read, then what a reader must know."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from taftcache.model.calibration import Calibration
from taftcache.model.component import public_fields
from taftcache.model.description import DESCRIPTION
from taftcache.model.meta import ComponentMeta, meta_of
from taftcache.model.saved import ABOUT
from taftcache.names import LARGE_EPSILON, at_most, by_groups_text, counted, epsilon_text, shown, tail_text

if TYPE_CHECKING:  # they need timm, which a model's score does not
    from taftcache.backbone.model import Backbone
    from taftcache.model.predictor import TangentModel

HERE = 'open_model(".")'  # in the snippet; a copy on a hub says where it is
TIMM_HERE = "local-dir:."
# In the snippets, as in `to_rgb`: PIL would clip 16-bit grey to white, and so it would 32 bits, as which Pillow before
# 10.3 opens 16-bit PNG. Of TIFF it gives 12 bits as they are, and 16 in which 0 is white (by tag 262).
OPENED = [
    'with open("image.jpg", "rb") as file:  # by its name, Pillow 13 would scramble some TIFF',
    "    image = Image.open(file)",
    "    image.load()",
    'if image.mode.startswith("I;16") or (image.mode, image.format) == ("I", "PPM"):  # grey: the upper 8 of its bits',
    '    tags = image.tag_v2 if image.format == "TIFF" else {}',
    "    grey = np.asarray(image) >> tags.get(258, [16])[0] - 8",
    "    image = Image.fromarray((255 - grey if tags.get(262) == 0 else grey).astype(np.uint8))",
    'if image.mode in ("I", "F"):',
    '    raise ValueError("signed, fractional or 32-bit pixels have no agreed range (or Pillow is older than 10.3)")',
    'image = image.convert("RGB")',
]
UNPROVEN = "Nothing here proves this text: `taftcache audit` checks what it says of training, in the store."
LIKELY = [
    'weights = np.exp((logits - logits.max()) / json.loads(known["temperature"]))',
    "print(weights.max() / weights.sum())  # its probability",
]


Part = Literal["solved", "private", "imported", "gone"]
"""Kinds of a sum's components: solved in the sum's own store, with a certificate, or trained privately there; from
another store; no longer there."""

_PARTS: dict[Part, str] = {
    "solved": "each the minimiser of its own shard's convex problem",
    "private": "trained with differential privacy, by noisy sums over rows",
    "imported": "imported from another store, and trained in a way that is not known here",
    "gone": "no longer in the store",
}


@dataclass(frozen=True, kw_only=True)
class Score:
    """Top-1 accuracy on ``rows`` held-out rows, with Wilson's interval at ``level``, and what the probabilities are
    worth there; None where there is no temperature. ``groups``: how many groups of rows the interval was judged by, if
    rows share any."""

    accuracy: float
    interval: tuple[float, float]
    level: float
    rows: int
    groups: int | None = None
    calibration: Calibration | None = None


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What the card says about a model beyond the model itself; what is None or empty is left out.

    name: what the store called it. root_digest: that of the store. rows_of: for a student, teacher -> the digests of
    the shards that it was trained on. dataset: a public dataset's name, never a path.
    score: how well it does on rows that it was not trained on. parts: of a sum without a promise, its components by
    kind. temperature: of its probabilities, softmax(logits / temperature). problems: loss and λ in words -> of how many
    components, or of the model itself; none of a private one. notes: what was known of the model when it left its
    store. unlearned: classes of which it had no training row -> their held-out rows.
    """

    name: str
    root_digest: str = ""
    rows_of: Mapping[str, list[str]] = field(default_factory=dict)
    dataset: str | None = None
    score: Score | None = None
    parts: Mapping[Part, int] = field(default_factory=dict)
    temperature: float | None = None
    problems: Mapping[str, int] = field(default_factory=dict)
    notes: Sequence[str] = ()
    unlearned: Mapping[str, int] = field(default_factory=dict)


def card(origin: Origin, model: TangentModel, extras: Mapping[str, str], *, native: bool) -> str:
    """The text of README.md.

    Args:
        origin: where the model comes from.
        model: the model.
        extras: further files of the folder, and what they are.
        native: whether the folder's config.json and model.safetensors are this model as an ordinary timm model.
    """
    config, said = model.base.config, meta_of(public_fields(model.component.meta))
    what = f"What was trained, Δw, is the one minimiser of a convex problem{_in_brackets(origin.problems)}."
    if said.privacy is not None:
        what = "What was trained, Δw, comes of noisy sums over the rows."
    elif said.kind == "composition":
        what = f"What was trained, Δw, is a weighted sum of {_summed(origin)}. It is no minimiser over all rows."
    elif said.certificate is None:
        what = "What was trained, Δw, came from another store; how it was trained is not known here."
    reset = "re-initialised from a seed" if model.base.spec.reset_block else "at its pre-trained weights"
    tail = f"the tail begins at `{config.start}`, last block {reset}"
    if not config.start:
        tail = "what is trained is " + tail_text(model.cut.backbone.config, "", config.width)
    lines = [
        *_front_matter(origin, model, native),
        f"# {origin.name} on {model.cut.backbone.name}",
        "",
        "A *tangent* model: the backbone's frozen layers, then the first-order expansion of its last part around a",
        f"base point, f(x) + J(x) Δw. {what}",
        "",
        f"- Backbone: `{model.cut.backbone.name}`; {tail}.",
        *_licence(model.cut.backbone),
        f"- Trained: {model.component.layout.size:,} numbers in {len(model.component.layout.shapes)} tensors.",
        *_classes(model, DESCRIPTION),
        *_unlearned(origin),
        *_preprocessed(model.transform.description()),
        f"- {_made(said, origin.parts)}",
        *_scored(origin.score),
        *_calibrated(origin),
        *([f"- From a store with root digest `{origin.root_digest[:16]}`."] if origin.root_digest else []),
        *_known(origin),
        "",
        *_use(native),
        "",
        *_transform(model.transform.description()),
        *(line for name, text in extras.items() for line in ("", f"`{name}` {text}")),
    ]
    unsaid = ["What it does not say: accuracy on your data; whether samples were forgotten (the store's ledger does)"]
    if said.privacy is not None:
        lines += ["", "## Privacy", "", *_promise(said.privacy)]
        unsaid[-1] += "."
    else:
        unsaid[-1] += ";"
        unsaid.append("anything about privacy. Whoever holds an earlier version can see what changed.")
    unsaid.append(UNPROVEN)
    return "\n".join([*lines, "", *unsaid, ""])


def _code(name: str) -> str:
    """A name chosen by whoever made the store, as code: it can bring no markup, no remote picture and no line break."""
    text = shown(name)
    if "`" not in text:
        return f"`{text}`"
    fence = "`" * (1 + max(len(run) for run in re.findall("`+", text)))
    return f"{fence} {text} {fence}"


def program_card(origin: Origin, model: TangentModel, extras: Mapping[str, str]) -> str:
    """README.md for a model that is exported only as a program or in ONNX; ``extras``: the files, and what they are."""
    image, said = model.transform.description(), model.component.record.privacy
    lines = [
        f"# {origin.name}",
        "",
        *_classes(model, ABOUT),
        *_licence(model.cut.backbone),
        *_preprocessed(image),
        *_calibrated(origin),
        *_known(origin),
        *(line for name, text in extras.items() for line in ("", f"`{name}` {text}")),
        "",
        *_transform(image),
        *(
            ["", "## Privacy", "", "Trained with differential privacy.", "", *_promise(said), "", UNPROVEN]
            if said
            else []
        ),
    ]
    return "\n".join([*lines, ""])


def _summed(origin: Origin) -> str:
    """What a sum is made of."""
    if not origin.parts:
        return "components, and how they were trained is not known here"
    how = _PARTS | {"solved": _PARTS["solved"] + _in_brackets(origin.problems)}
    said = [(n, how[part].removeprefix("each ") if n == 1 else how[part]) for part, n in origin.parts.items()]
    of = counted(sum(origin.parts.values()), "component")
    return f"{of}, {said[0][1]}" if len(said) == 1 else f"{of}: " + "; ".join(f"{n} of them {part}" for n, part in said)


def _in_brackets(problems: Mapping[str, int]) -> str:
    """Loss and λ of the problems that were solved, with the number of components that have them if they differ."""
    if len(problems) == 1:
        return f" ({next(iter(problems))})"
    return f" ({'; '.join(f'{said} in {n} of them' for said, n in problems.items())})" if problems else ""


def _known(origin: Origin) -> list[str]:
    """What was known of the model when it left its store."""
    return [f"- When it left its store, it was {note}." for note in origin.notes]


def _classes(model: TangentModel, file: str) -> list[str]:
    """The first classes, and in which ``file`` all are."""
    return [
        f"- Classes ({len(model.classes)}): {_listed(model.classes)}",
        f"  All, in the order of the logits: `classes` in `{file}`.",
    ]


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_code, names[:20])) + (" …" if len(names) > 20 else "")


def _unlearned(origin: Origin) -> list[str]:
    """The classes that the model cannot know, and what they do to its accuracy."""
    if not origin.unlearned:
        return []
    which = f"{counted(len(origin.unlearned), 'class')} of these without a training row, which cannot be learned"
    lines = [f"- {which}: {_listed([*origin.unlearned])}"]
    if origin.score is not None and (held := sum(origin.unlearned.values())):
        lines.append(f"  The accuracy counts {counted(held, 'held-out row')} of such a class.")
    return lines


def on_hub(text: str, name: str) -> str:
    """The card with snippets that load the model from the hub, as ``name``, instead of from its own folder."""
    text = text.replace("import open_model", "import from_pretrained")
    return text.replace(HERE, f'from_pretrained("{name}")').replace(TIMM_HERE, f"hf-hub:{name}")


def _front_matter(origin: Origin, model: TangentModel, native: bool) -> list[str]:
    """The lines between the two ``---``. A value is JSON, which is YAML, too. No licence: a hub would take that of the
    backbone's weights for one to all that is in the folder."""
    fields: dict[str, Any] = {
        "library_name": "timm" if native else "taftcache",
        "pipeline_tag": "image-classification",
        "tags": ["image-classification", "tangent-model", "taftcache", *(["timm"] if native else [])],
    }
    if hub := _published(model.cut.backbone).get("hf_hub_id"):
        fields |= {"base_model": hub, "base_model_relation": "finetune"}
    if origin.dataset:
        fields["datasets"] = [origin.dataset]
    if origin.score:
        fields["model-index"] = [{"name": origin.name, "results": [_result(origin.score, origin.dataset)]}]
    return ["---", *(f"{key}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items()), "---"]


def _published(backbone: Backbone) -> Mapping[str, Any]:
    """What timm says about these weights; nothing for a file of weights that was not named after published ones."""
    named = backbone.config["weights"] in ("pretrained", "bundled", "folder") or "." in backbone.name
    cfg: Any = backbone.network.pretrained_cfg
    return dict(cfg) if named else {}


def _licence(backbone: Backbone) -> list[str]:
    said = _published(backbone).get("license")
    return [f"- Licence of the backbone's weights: {_code(str(said))}. This model's own is not stated."] if said else []


def _result(score: Score, dataset: str | None) -> dict[str, Any]:
    """A result in the form of a hub's model index; the interval is among the metric's arguments."""
    bounds = [round(bound, 6) for bound in score.interval]
    interval = {"interval": bounds, "level": score.level, "method": "Wilson"}
    metric = {
        "type": "accuracy",
        "name": "top-1 accuracy",
        "value": round(score.accuracy, 6),
        "args": {
            "rows": score.rows,
            **({} if score.groups == 1 else interval),
            **({} if score.groups is None else {"groups": score.groups}),
        },
    }
    name = dataset or "held-out rows"
    return {
        "task": {"type": "image-classification"},
        "dataset": {"type": name if dataset else "image-classification", "name": name},
        "metrics": [metric],
    }


def _scored(score: Score | None) -> Sequence[str]:
    if score is None:
        return []
    low, high = score.interval
    said = f"{low:.1%} to {high:.1%}, Wilson's interval at {score.level:.0%}{by_groups_text(score.groups)}"
    if score.groups == 1:
        said = "no interval, for all are of one group"
    return [f"- Top-1 accuracy on {counted(score.rows, 'held-out row')}: {score.accuracy:.1%} ({said})."]


def _calibrated(origin: Origin) -> Sequence[str]:
    """How logits become probabilities, if that is known, and what these are worth."""
    if origin.temperature is None:
        return []
    lines = [f"- Probabilities: softmax(logits / {origin.temperature:g}), a temperature fitted to held-out rows."]
    if origin.score is not None and (of := origin.score.calibration):
        rows = f"  Of rows that had no part in the fit (by parts, {of.rows:,} in all): log-loss {of.log_loss:.3f} nats"
        chance = f"(by chance alone {100 * of.chance:.1f}; predicted class,"
        off = [f"  calibration error {100 * of.error:.1f} points {chance}", "  15 bins)."]
        lines += [f"{rows},", *off] if of.telling else [f"{rows}."]
    return lines


def _preprocessed(said: Mapping[str, Any]) -> list[str]:
    """What becomes of an image before the model sees it."""
    (_, height, width), mode = said["input_size"], said["crop_mode"]
    scaled = [math.floor(side / said["crop_pct"]) for side in (height, width)]
    how = {
        "squash": f"resized to {scaled[0]} x {scaled[1]} pixels, whatever its shape; of that the middle",
        "border": f"resized to fit into {scaled[0]} x {scaled[1]} pixels, padded with the mean; of that the middle",
    }.get(
        mode, f"resized to {' x '.join(map(str, dict.fromkeys(scaled)))} pixels on its short side; of that the middle"
    )
    return [
        f"- Preprocessing of an RGB image: {how} {height} x {width} ({said['interpolation']}); divided by 255;",
        f"  less the mean {said['mean']}, divided by the deviation {said['std']} of its channels.",
        "  In detail it is [this](#preprocessing).",
    ]


def _transform(said: Mapping[str, Any]) -> list[str]:
    """The preprocessing as code: with torchvision or, for the rarer ways to crop an image, with timm."""
    (_, height, width), mode = said["input_size"], said["crop_mode"]
    scaled = tuple(math.floor(side / said["crop_pct"]) for side in (height, width))
    if mode == "squash" or (mode == "center" and height == width):
        size = scaled if mode == "squash" else scaled[0]
        code = [
            "from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor",
            "",
            "preprocess = Compose([",
            f"    Resize({size}, InterpolationMode.{said['interpolation'].upper()}),",
            f"    CenterCrop({(height, width)}),",
            "    ToTensor(),  # channels red, green, blue, each from 0 to 1",
            f"    Normalize({said['mean']}, {said['std']}),",
            "])",
        ]
    else:
        code = [
            "from timm.data import create_transform",
            "",
            "preprocess = create_transform(",
            *(f"    {key}={value!r}," for key, value in said.items()),
            "    is_training=False,",
            ")  # channels red, green, blue",
        ]
    return [
        "## Preprocessing",
        "",
        "What the model is given of an image, [1, 3, height, width]; EXIF rotation is applied to TIFF alone, by PIL:",
        "",
        "```python",
        "import numpy as np",
        "from PIL import Image",
        *code,
        "",
        *OPENED,
        "x = preprocess(image)[None]",
        "```",
    ]


def onnx_snippet(file: str, said: Mapping[str, Any], temperature: float | None) -> list[str]:
    """How to run the ONNX file with onnxruntime alone; nothing for the rarer ways to crop an image."""
    (_, height, width), mode = said["input_size"], said["crop_mode"]
    if mode != "center" or height != width:
        return []
    return [
        "```python",
        "import json",
        "",
        "import numpy as np",
        "import onnxruntime",
        "from PIL import Image",
        "",
        f'session = onnxruntime.InferenceSession("{file}")',
        *OPENED,
        f"sides = [{math.floor(width / said['crop_pct'])} * side // min(image.size) for side in image.size]",
        f"left, top = (round((side - {width}) / 2) for side in sides)",
        f"image = image.resize(sides, Image.Resampling.{said['interpolation'].upper()})",
        f"pixels = np.array(image.crop((left, top, left + {width}, top + {height})), np.float32) / 255",
        f"pixels = (pixels - np.float32({said['mean']})) / np.float32({said['std']})",
        'logits = session.run(None, {"images": pixels.transpose(2, 0, 1)[None]})[0]',
        "known = session.get_modelmeta().custom_metadata_map",
        'print(json.loads(known["classes"])[logits.argmax()])',
        *(LIKELY if temperature else []),
        "```",
    ]


def _use(native: bool) -> list[str]:
    """How to load it, as snippets that run where the folder is."""
    lines = [
        "```python",
        "from taftcache import open_model",
        "",
        f"model = {HERE}",
        'print(model.predict(["image.jpg"], top=1)[0].labels)',
        "```",
        "",
    ]
    if not native:
        return [
            *lines,
            "timm cannot load this model, for it is no network with other weights, and refuses to. The folder",
            "`backbone` has the frozen layers alone.",
        ]
    return [
        *lines,
        "Its head alone has moved, so it is also an ordinary timm model, which agrees up to float32 rounding:",
        "",
        "```python",
        "import numpy as np",
        "import timm",
        "from PIL import Image",
        "",
        f'network = timm.create_model("{TIMM_HERE}", pretrained=True).eval()',
        "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(network))",
        *OPENED,
        "logits = network(transform(image)[None])",
        'print(network.pretrained_cfg["label_names"][logits.argmax()])',
        "```",
    ]


def _made(said: ComponentMeta, parts: Mapping[Part, int]) -> str:
    """How Δw came about, in a sentence."""
    if said.privacy is not None:
        of = f" Composed of {counted(len(said.coefficients), 'component')}." if said.coefficients is not None else ""
        rows = f" Trained on about {counted(said.rows, 'cached sample')}." if said.rows is not None else ""
        return f"Trained with differential privacy, see below.{rows}{of}"
    if certificate := said.certificate:
        return (
            f"Trained on {counted(certificate.rows, 'cached sample')};"
            f" gradient {at_most(certificate.relative_gradient)} of its start in float64, so the distance to the one"
            f" optimum is at most {at_most(certificate.distance_bound)}."
        )
    if said.kind != "composition":
        rows = "" if said.rows is None else f" of {counted(said.rows, 'cached sample')}, as that said"
        return f"Taken in from a file{rows}: it has no certificate and no ε."
    if not parts:
        return "Composed of components: it has no certificate and no ε."
    composed = f"Composed of {counted(sum(parts.values()), 'component')}"
    if parts.keys() == {"solved"}:
        return f"{composed}; each has its certificate in the store."
    proven = f", {n} of them with a certificate in the store" if (n := parts.get("solved")) else ""
    return f"{composed}{proven}; the sum has no ε."


def _promise(said: Mapping[str, Any]) -> list[str]:
    """What a private model promises, and what is not covered, as lines of the model card."""
    if not said["private"]:
        return ["None: its noise came from a seed, so whoever knows that can take the noise off."]
    one = "one row more or less" if said["relation"] == "add-remove" else "another row under the id of one"
    epsilon, delta = epsilon_text(said["epsilon"]), at_most(said["delta"], ".6g")
    lines = [
        f"(ε, δ) = ({epsilon}, {delta}): with {one} in the data (`{said['relation']}`), the",
        f"probability of any outcome is at most e^{epsilon} times as large, plus {delta}. A row is one",
        "cached sample: of a person or a picture that is in several of them it promises less. Samples that its store",
        "has forgotten since may be among those that it was trained on: of k of them together it promises k times ε,",
        "with a larger δ.",
        "To publish each row whole with probability δ would keep it, so δ says something where it is far below one in",
        "the rows in all.",
    ]
    if said["epsilon"] > LARGE_EPSILON:
        lines.append(f"An epsilon above {LARGE_EPSILON} bounds next to nothing of what can be told of a row.")
    if "tuning" in said:
        lines.append(f"How the settings were chosen: {said['tuning']}.")
    if "composition" in said:
        lines.append(f"Composition: {said['composition']}.")
    return [*lines, "", "Not covered:", "", *(f"- {text}" for text in said["not_covered"])]
