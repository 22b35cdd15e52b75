"""What cannot be cut, and what the error says of where it can be."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from taftcache.backbone.cut.cut import Cut
from taftcache.backbone.model import wrap_model
from taftcache.backbone.spec import BackboneSpec, PreprocessSpec
from taftcache.errors import BackboneError, RecipeError
from tests.backbone.families import small_family
from tests.backbone.registry import images, small_backbone


def test_a_depth_or_name_that_there_is_not():
    backbone = small_backbone()
    with pytest.raises(BackboneError, match=r"(?s)blocks is 4, more than the 3 blocks of small.*try: a number.* to 3$"):
        Cut(backbone, 4)
    with pytest.raises(BackboneError, match=r"small has no module 'blocks\.11'(.|\n)*blocks\.1"):
        Cut(backbone, "blocks.11")
    with pytest.raises(BackboneError, match=r"(?s)no module 'nope'.*try: one of blocks\.0, blocks\.1, blocks\.2, norm"):
        Cut(backbone, "nope")
    with pytest.raises(BackboneError, match=r"does not call 'blocks' as a whole(.|\n)*blocks\.0"):
        Cut(small_family("DINOv3"), "blocks")


@pytest.mark.law("Nothing of a sample reaches the head but through its row")
@pytest.mark.parametrize("inside", ["blocks.1.mlp", "blocks.1.norm2", "blocks.2.attn"])
def test_the_inside_of_a_residual_branch(inside):
    with pytest.raises(BackboneError, match="goes around it"):
        Cut(small_backbone(), inside)


def test_a_second_stream_that_goes_around():
    with pytest.raises(BackboneError, match="goes around it"):
        Cut(small_family("CaiT"), 1)


def test_windows_are_not_images():
    with pytest.raises(BackboneError, match="images are not the first axis"):
        Cut(small_family("Swin"), "layers.0.blocks.0.attn")


class _Twice(nn.Module):
    """timm's face, with one block that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.other, self.head, self.num_classes = nn.Conv2d(3, 3, 1), nn.ReLU(), nn.Linear(3, 2), 2
        self.pretrained_cfg = {"input_size": (3, 8, 8)}

    def get_classifier(self):
        return self.head

    def forward_features(self, x):
        return self.other(self.block(self.block(x)))

    def forward_head(self, x, pre_logits=False):
        x = x.mean((2, 3))
        return x if pre_logits else self.head(x)

    def forward(self, x):
        return self.forward_head(self.forward_features(x))


def test_a_module_that_is_called_twice():
    backbone = wrap_model(_Twice(), "twice", PreprocessSpec(input_size=(3, 8, 8)))
    with pytest.raises(BackboneError, match="twice cannot be cut before block: it is called 2 times"):
        Cut(backbone, "block")
    x = images(2, 8)
    cut = Cut(backbone, "other")
    assert torch.equal(cut.replay(cut.prefix(x)), backbone.model(x))


def test_no_pooling_and_no_linear_head():
    with pytest.raises(BackboneError, match="not one vector for each image"):
        Cut(wrap_model(timm.create_model("resnet10t", num_classes=0, global_pool=""), "map", PreprocessSpec()))
    with pytest.raises(BackboneError, match=r"not one Linear layer(.|\n)*num_classes = 0"):
        Cut(wrap_model(timm.create_model("levit_128s", num_classes=2), "levit"))


@pytest.mark.parametrize("name", ["shvit_s1", "volo_d1_224"])
def test_logits_that_are_no_linear_map_of_the_feature(name):
    """A BatchNorm before the last layer, and a second head, were left out without a word; a head of zeros hides it."""
    torch.manual_seed(0)
    small = {"img_size": 64} if name == "volo_d1_224" else {}
    model, size = timm.create_model(name, num_classes=2, **small).eval(), PreprocessSpec(input_size=(3, 64, 64))
    for key, tensor in model.state_dict().items():
        if key.endswith("head.bn.running_var"):
            tensor.add_(1.0)
    nn.init.zeros_(model.get_classifier().weight)
    with pytest.raises(BackboneError, match=r"logits of \w+ are not one linear map(.|\n)*num_classes = 0"):
        Cut(wrap_model(model, name, size), 0)
    model.reset_classifier(0)
    assert Cut(wrap_model(model, name, size), 0).replay(torch.ones(1, 1, 3)).shape == (1, 3)


ELSEWHERE = {
    "gcvit_xxtiny": ("cut before stages.3, ", "stages.3"),
    "cs3darknet_focus_s": ("cut before stages.3, ", "stages.3"),
    "cait_xxs24_224": ("cut before blocks_token_only.0, ", "blocks_token_only.0"),
    "tnt_s_patch16_224": ("norm, or 0", "norm"),
    "densenet121": ("cut before features.denseblock4, or 0 for the head alone", "features.denseblock4"),
}


@pytest.mark.parametrize(
    "name", [n if n in ("densenet121", "gcvit_xxtiny") else pytest.param(n, marks=pytest.mark.full) for n in ELSEWHERE]
)
def test_a_refused_cut_says_where_another_one_can_be(name):
    says, offered = ELSEWHERE[name]
    small = {"block_config": (2, 2, 2, 2)} if name == "densenet121" else {}
    backbone = wrap_model(timm.create_model(name, **small), name)
    with pytest.raises(BackboneError) as refused:
        Cut(backbone, 1)
    assert says in refused.value.do
    assert Cut(backbone, offered).start == offered


@pytest.mark.parametrize(("name", "options"), [("crossvit_tiny_240", {"num_classes": 0, "depth": [[1, 1, 0]] * 3})])
def test_what_cannot_be_cut_in_turn_is_not_offered(name, options):
    """Each of four cuts that were named was refused, and named the others."""
    backbone = wrap_model(timm.create_model(name, **options), name)
    for blocks in (1, "blocks.2"):
        with pytest.raises(BackboneError, match=r"before none of the \d+ modules that were tried can it be cut"):
            Cut(backbone, blocks)
    assert Cut(backbone, 0).start == ""


@pytest.mark.parametrize("inside", ["blocks.1.mlp", "blocks.1.norm2"])
def test_what_was_refused_is_not_offered(inside):
    with pytest.raises(BackboneError, match=r"cut before blocks\.1, or 0 for the head alone"):
        Cut(small_backbone(), inside)


def test_grey_models_are_told_that_images_are_rgb():
    with pytest.raises(RecipeError, match=r"images are RGB(.|\n)*in_chans = 1\n  try: leave in_chans out"):
        BackboneSpec(model="resnet10t", weights="pretrained", model_args={"in_chans": 1})
    with pytest.raises(BackboneError, match="three channels, in RGB"):
        Cut(wrap_model(timm.create_model("resnet10t", in_chans=1), "grey", PreprocessSpec(input_size=(3, 32, 32))))


def test_models_of_others_say_what_they_lack():
    model = nn.Sequential(nn.Conv2d(3, 3, 1))
    model.pretrained_cfg, model.num_classes = {"input_size": (3, 8, 8)}, 0
    with pytest.raises(BackboneError, match="classifier"):
        Cut(wrap_model(model, "plain", PreprocessSpec(input_size=(3, 8, 8))))
