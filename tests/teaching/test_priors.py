"""Priors of predictions and of mapped kernels against plain float64, and students of a model's first blocks."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression

from taftcache.backbone.spec import PreprocessSpec
from taftcache.backbone.student import build_student
from taftcache.errors import BackboneError
from taftcache.teaching.evidence import RIDGE, softmax_regression
from taftcache.teaching.students.kernels import cosine_distance
from taftcache.teaching.students.priors import KernelDistillation, LogitDistillation
from tests.teaching.making import VIT
from tests.teaching.test_kernels import features

WIDE = PreprocessSpec(input_size=(3, 16, 16))


def labelled() -> tuple[torch.Tensor, torch.Tensor]:
    psi = features(60, 7)
    return psi, (psi @ features(7, 4, 3) + features(60, 4, 5)).argmax(1)


def test_the_teachers_logits_are_scikit_learns():
    """Softmax regression's least: scikit-learn's, at the penalty that is n times as large in its sum over rows."""
    psi, labels = labelled()
    found = softmax_regression(psi + 3, labels, 4)
    model = LogisticRegression(C=1 / (60 * RIDGE), tol=1e-10, max_iter=5000).fit(psi.numpy(), labels.numpy())
    np.testing.assert_allclose(
        found(psi + 3).softmax(1).numpy(), model.predict_proba(psi.numpy()), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(found.weight.T.numpy(), model.coef_, rtol=1e-3, atol=1e-5)


def test_distillation_of_logits_is_the_published_form():
    """T² Σ p log(p/q) at temperature T, row by row."""
    psi, labels = labelled()
    teacher = softmax_regression(psi, labels, 4)
    prior, logits = LogitDistillation(teacher).double(), features(60, 4, 8)
    T, total = prior.TEMPERATURE, 0.0
    for z, own in zip(teacher(psi).numpy(), logits.numpy(), strict=True):
        p, q = (np.exp(v / T) / np.exp(v / T).sum() for v in (z, own))
        total += T**2 * (p * np.log(p / q)).sum() / 60
    assert prior(features(60, 3), psi, logits).item() == pytest.approx(total, rel=1e-5)
    assert prior(features(60, 3), psi, teacher(psi) + 1.7).item() == pytest.approx(0, abs=1e-9)


def test_kernel_distillation_asks_the_student_for_all_of_the_teacher():
    """It starts at equal weights' distance; a map that takes φ to ψ brings it to its least, and so does its slope."""
    psi = features(40, 5)
    phi = psi @ features(5, 5, 2)
    prior = KernelDistillation(5).double()
    start = prior(phi, psi, psi)
    torch.testing.assert_close(start, cosine_distance(phi, psi))
    start.backward()
    with torch.no_grad():
        prior.map -= 1e-3 * prior.map.grad
        assert prior(phi, psi, psi) < start
        prior.map.copy_(torch.linalg.inv(features(5, 5, 2)).T)
        assert prior(phi, psi, psi) <= 1.1e-4  # the floor of the root


def test_a_student_of_the_first_blocks_has_the_files_weights(tmp_path):
    torch.manual_seed(1)
    whole = timm.create_model("vit_tiny_patch16_224", **{**VIT, "depth": 3, "num_classes": 7}).eval()
    save_file(whole.state_dict(), tmp_path / "whole.safetensors")
    args = {**VIT, "depth": 3, "num_classes": 7}
    weights = str(tmp_path / "whole.safetensors")
    student = build_student("vit_tiny_patch16_224", weights, args, WIDE, 4, 0, blocks=2)
    student.model.eval()
    images = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    whole.blocks = whole.blocks[:2]
    with torch.no_grad():
        feature, logits = student(images)
        torch.testing.assert_close(feature, whole.forward_head(whole.forward_features(images), pre_logits=True))
    assert logits.shape == (3, 4)
    assert student.backbone.name == "vit_tiny_patch16_224, first 2 of 3 blocks"
    with pytest.raises(BackboneError, match=r"(?s)fewer blocks.*3 blocks, student.blocks = 4"):
        build_student("vit_tiny_patch16_224", weights, args, WIDE, 4, 0, blocks=4)


@pytest.mark.usefixtures("mac")
def test_a_student_is_trained_where_there_is_float64():
    student = build_student("vit_tiny_patch16_224", "random", VIT, WIDE, 4, 0, "auto")
    assert student.backbone.device.type == "cpu"


def test_a_model_without_a_sequence_of_blocks_has_no_first_ones():
    with pytest.raises(BackboneError, match=r"(?s)fewer blocks.*no sequence of blocks"):
        build_student("resnet18", "random", {}, PreprocessSpec(), 4, 0, blocks=2)
    with pytest.raises(BackboneError, match=r"(?s)timm builds no mobilenetv2_035 of fewer blocks.*student.blocks"):
        build_student("mobilenetv2_035", "random", {}, PreprocessSpec(), 4, 0, blocks=2)
