"""``taftcache teach`` as a shell calls it."""

from __future__ import annotations

import json

import pytest

from taftcache.cli import main
from tests.teaching.making import VIT, teacher_recipe

REPORT = {"folder", "student", "prior", "beta", "accuracy", "tables", "conclusions", "plots", "trained", "kept"}
REPORT |= {"seconds", "notes"}


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*arguments])
    return ended.value.code or 0


def test_teach_makes_its_teacher_trains_and_reports(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    made = teacher_recipe(tmp_path / "teacher")
    (tmp_path / "teacher.toml").write_text(
        f'[data]\nsource = "digits"\nlimit = {made.data.limit}\n'
        f'[backbone]\nmodel = "{made.backbone.model}"\nweights = "{made.backbone.weights}"\n'
        f"model_args = {{ {', '.join(f'{k} = {v}' for k, v in {**VIT, 'num_classes': 10}.items())} }}\n"
        f'[store]\npath = "{tmp_path / "teacher"}"\ncache = "feature"\ndtype = "float32"\n[tangent]\ntrain = "head"\n'
    )
    (tmp_path / "teach.toml").write_text(
        f'path = "{tmp_path / "out"}"\n[data]\nsource = "digits"\nlimit = {made.data.limit}\n'
        f'[[teachers]]\nname = "tiny"\nrecipe = "{tmp_path / "teacher.toml"}"\n'
        f'[student]\nmodel = "vit_tiny_patch16_224"\nweights = "random"\n'
        f"model_args = {{ {', '.join(f'{k} = {v}' for k, v in {**VIT, 'depth': 1}.items())} }}\n"
        "[preprocess]\ninput_size = [3, 16, 16]\n[teach]\ngrid = [1.0]\n[train]\nepochs = 1\n"
        '[report]\npriors = ["kd"]\nlatency = false\n'
    )
    recipe = str(tmp_path / "teach.toml")
    assert call("teach", recipe, "--device", "cpu", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    assert set(report) == REPORT
    students = report["trained"]
    assert (students >= 2, report["kept"]) == (True, 0)  # asked for twice, it was not found trained
    tried = report["tables"]["students"][1]["tried on rows held back"]
    assert call("teach", recipe, "--device", "cpu") == 0
    shown = capsys.readouterr().out
    assert f"0 students trained, {students} found trained" in shown
    assert "linear probe" in shown
    assert ", ".join(f"{beta}: {100 * accuracy:.1f}" for beta, accuracy in tried.items()) in shown
    assert "note: beta was chosen on " in shown
    student = str(tmp_path / "out" / "students" / report["student"].split("/")[-2])
    assert f"student {student}\n" in shown
    assert f"next    taftcache predict {student} IMAGE" in shown
    assert str(tmp_path / "out" / "report.md") in shown
    assert call("teach", recipe, "--set", "teach.beta=-1") == 2
    assert "taftcache: " in capsys.readouterr().err
