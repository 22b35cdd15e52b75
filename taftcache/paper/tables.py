"""The lines of the paper's tables: Table 1, 2, 3 and 7."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from taftcache.paper.line import ReportLine, Tuned, cost, over_rows
from taftcache.paper.private_table import private_cells
from taftcache.paper.trial import Preset, Setting
from taftcache.paper.uncomposed import of_all_rows, of_shards
from taftcache.paper.workbench import Criterion, Workbench


def table1(work: Workbench) -> Iterator[ReportLine]:
    """NLFT and TAFT on the last blocks, by depth, and the head alone."""
    columns: list[tuple[Criterion, int | str]] = [("FC", work.depth)]
    for depth in work.spec.depths or (work.depth,):
        work.store(depth)  # a depth that the model does not have is refused before anything is trained
        columns += [("TAFT", depth), ("NLFT", depth)]
    for method, depth in columns:
        presets: tuple[Preset, ...] = ("paper",) if method == "NLFT" else work.spec.presets
        for preset in presets:
            if method == "FC":
                at = Setting("FC", 0.0, loss="cross_entropy")
                best = work.tuned("FC", preset, depth=depth, template=at, resets=(False,))
            else:
                best = work.tuned(method, preset, depth=depth, tokens=work.tokens())
            name = method if method == "FC" else f"{method}-{depth}"
            yield line(work, name, preset, best, depth=depth)


def table2(work: Workbench) -> Iterator[ReportLine]:
    """Composed models: TAFT against Soup, with the mean of heads and what needs no composition for comparison."""
    for name, setting in of_all_rows(work).items():
        yield line(work, name, "exact", setting)
    for shards in work.spec.shards:
        for preset in work.spec.presets:
            best = work.tuned("TAFT", preset, shards, tokens=work.tokens())
            yield line(work, "TAFT", preset, best, shards=shards)
        best = work.tuned("Soup", "paper", shards, tokens=work.tokens())
        yield line(work, "Soup", "paper", best, shards=shards)
        for name, setting in of_shards(work, shards).items():
            yield line(work, name, "exact", setting, shards=shards)


def table7(work: Workbench) -> Iterator[ReportLine]:
    """Balls: R and the loss, at the base point that Table 1's tangent model chose."""
    for preset in work.spec.presets:
        chosen = work.tuned("TAFT", preset, tokens=work.tokens())
        resets, tokens = (chosen.reset_block,), (chosen.reset_token,)
        found: dict[tuple[float, str], Setting] = {}
        for loss in ("cross_entropy", "rsl"):
            for radius in work.spec.radii:
                at = Setting("TAFT", 0.0, loss=loss, kappa=work.spec.ball_kappa, radius=radius)
                if preset == "exact":
                    best = replace(at, preset=preset, reset_block=resets[0], reset_token=tokens[0])
                else:
                    best = work.tuned("TAFT", preset, template=at, resets=resets, tokens=tokens)
                found[radius, loss] = best
        for seed in work.seeds():
            work.fit(list(found.values()), 1, seed)
        for (radius, loss), setting in sorted(found.items()):
            yield line(work, "CE" if loss == "cross_entropy" else "RSL", preset, setting, radius=radius)


def table3(work: Workbench) -> Iterator[ReportLine]:
    """Private training of the tangent model and of the network itself, by what is trained."""
    for cell in private_cells(work):
        chosen, figures = cell.run, cell.figures
        name = chosen.regime if chosen.mechanism != "least-squares" else f"{chosen.regime}, least squares"
        if cell.tried:
            work.settings.append(
                Tuned(
                    method=f"{name}, {chosen.network}, ε = {chosen.epsilon:g}",
                    depth=work.depth,
                    shards=1,
                    chosen=chosen.describe(),
                    tried=[{**one.describe(), "accuracy": round(found, 2)} for one, found in cell.tried],
                )
            )
        yield ReportLine(
            method=name,
            preset=chosen.network,
            epsilon=chosen.epsilon,
            **over_rows([seed.numpy() for seed in cell.right]),
            setting={
                **chosen.describe(),
                "claimed": figures["epsilon"],
                "delta": figures["delta"],
                "noise": figures["multiplier"],
                "learning rate": figures["learning_rate"],
            },
        )


def line(
    work: Workbench,
    name: str,
    preset: Preset,
    setting: Setting,
    *,
    shards: int = 1,
    depth: int | str | None = None,
    radius: float | None = None,
) -> ReportLine:
    """One figure of a table: what it belongs to, accuracy over seeds, its cost, and the setting that made it."""
    found, fits = [], []
    criterion: Criterion = "Soup" if name == "Soup" else "TAFT"
    for seed in work.seeds():
        fitted = work.fit([setting], shards, seed, depth)[setting]
        found.append(work.right(criterion, work.trial(shards, seed, depth), setting, fitted, range(shards)))
        fits.append(fitted)
    return ReportLine(
        method=name,
        preset=preset,
        shards=shards if shards > 1 else None,
        radius=radius,
        depth=depth if depth != work.depth else None,
        **over_rows(found),
        **cost(fits),
        setting=setting.describe(),
    )
