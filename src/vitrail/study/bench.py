"""`bench`: images a second, latency, memory; over models, image and batch sizes, beside other systems.

Every figure is the median of many passes with its spread, on the machine the table names, and is
set against the rate of a large matrix product measured in the same run. Peers (`peers=True`) do the
same work from the same weights: their losses or logits are compared, and each is judged by its best
way of running. On a CPU contestants take turns, so that a busy machine slows them all alike; on a
GPU they run one after another, each alone in its memory.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import date
from typing import Any

import torch
from torch import Tensor

from vitrail.errors import ResourceError, UsageError, VitrailError, nearest
from vitrail.model.cost import cost_of
from vitrail.model.variants import build, config_for
from vitrail.runtime.device import pick_device
from vitrail.runtime.progress import Progress
from vitrail.runtime.stopwatch import Timing, passes
from vitrail.study.bench_peers import PEERS, SAME_FUNCTION, comparable, installed, version_of
from vitrail.study.bench_work import COMPILER, OURS, Case, Prepared, parts_of, prepare
from vitrail.study.machine import Machine, look

__all__ = ["Bench", "Row", "bench"]

WORK = ("infer", "train")
LOSSES = {"cuda": 5, "cpu": 2}  # training steps whose losses are compared, before the clock runs
BUSY = 0.15  # a spread above this says that the machine had something else to do
LARGEST = 1 << 16  # images at once that nobody needs more of
WORTH = 1.02  # a batch size that brings less than this is the end of a sweep

Failure = (VitrailError, RuntimeError, TypeError, ValueError, AttributeError, AssertionError, ImportError)


@dataclass(frozen=True)
class Row:
    """What a case gave; `error` says why it gave nothing."""

    case: Case
    timing: Timing | None = None
    images_per_s: float = 0.0
    tflops: float = 0.0  # by the analytic count: 2 a multiply-accumulate, training three forward passes
    share: float | None = None  # of the large product's rate, in the same precision where that was measured
    path: str = ""  # which of our kernels ran
    memory_gib: float | None = None  # peak of the GPU's allocator
    largest_batch: int | None = None
    losses: tuple[float, ...] = ()  # of the first training steps
    agrees: float | None = None  # greatest relative distance of logits or losses from ours in fp32, or from ours
    ratio: float | None = None  # of ours to the best peer at the same work
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self.case), **{name: value for name, value in asdict(self).items() if name != "case"}}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Row:
        case = Case(**{item.name: values[item.name] for item in fields(Case)})
        own = {item.name: values[item.name] for item in fields(cls) if item.name in values}
        timing = Timing(**own["timing"]) if own.get("timing") else None
        return cls(**{**own, "case": case, "timing": timing, "losses": tuple(own.get("losses", ()))})


@dataclass(frozen=True)
class Bench:
    machine: Machine
    rows: tuple[Row, ...]
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    day: str = ""

    def best(self, work: str, model: str, batch: int, system: str) -> Row | None:
        """The fastest row of a system at a piece of work."""
        found = [
            row for row in self.rows if (row.case.work, row.case.model, row.case.batch, row.case.system) == (work, model, batch, system)
        ]
        return max((row for row in found if row.timing), key=lambda row: row.images_per_s, default=None)

    def to_dict(self) -> dict[str, Any]:
        return {
            "day": self.day,
            "machine": self.machine.to_dict(),
            "versions": self.versions,
            "seconds": round(self.seconds, 1),
            "notes": list(self.notes),
            "rows": [row.to_dict() for row in self.rows],
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Bench:
        rows = tuple(Row.from_dict(row) for row in values["rows"])
        return cls(Machine(**values["machine"]), rows, values["versions"], tuple(values["notes"]), values["seconds"], values["day"])

    def __str__(self) -> str:
        from vitrail.study.bench_report import as_text

        return as_text(self)


def joined(parts: Sequence[Bench]) -> Bench:
    """Benchmarks of one machine as one: ratios and the agreement of losses are taken over all rows."""
    rows = [row for part in parts for row in part.rows]
    models = dict.fromkeys(row.case.model for row in rows)
    together = [row for model in models for row in with_ratios(with_agreement([row for row in rows if row.case.model == model]))]
    said = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    versions = {name: version for part in parts for name, version in part.versions.items()}
    return Bench(parts[0].machine, tuple(together), versions, said, sum(part.seconds for part in parts), parts[0].day)


def bench(
    models: Sequence[str] = (),
    *,
    work: Sequence[str] = ("infer",),
    image_sizes: Sequence[int] = (),
    batch_sizes: Sequence[int] = (),
    precisions: Sequence[str] = (),
    modes: Sequence[str] = (),
    peers: bool | Sequence[str] = False,
    ours: bool = True,
    sweep: bool = False,
    fast: bool = False,
    exact_gelu: bool = False,
    shared: bool = False,
    device: str | None = None,
    budget_s: float | None = None,
    runs: int = 30,
    progress: bool = False,
    each: Callable[[Row], None] | None = None,
) -> Bench:
    """Time models. What is left open is chosen for the device: see `defaults`.

    models        names ("B/16", "L/16@384"); image_sizes: each model at each of these sizes as well
    work          "infer", "train"
    batch_sizes   images at once; sweep: doubled until it brings nothing more, and the largest that fits (GPU)
    precisions    of ours: "fp32", "tf32", "bf16", "fp16", "fp8"
    modes         how models are run: `bench_work.COMPILER`, with `ADDITIONS` after a plus
    peers         True: all that are installed; or their names. ours=False leaves Vitrail itself out
    exact_gelu    GELU as the peers compute it, also where none is measured
    fast          also the CPU runtimes that `--fast` chooses from
    shared        count this process's own processor time, for a CPU that others use too; one thread only
    budget_s      seconds of timed passes a case (at least three passes, at most `runs`)
    each          called with each row when it is done
    """
    begun = time.perf_counter()
    place = pick_device(device)
    check(work, modes, precisions)
    if shared and (place.type != "cpu" or torch.get_num_threads() != 1):
        raise UsageError("Processor time tells the truth about one CPU thread only.", hint="--shared goes with --device cpu --threads 1")
    systems = ((OURS,) if ours else ()) + chosen_peers(peers)
    if not systems:
        raise UsageError("There is nothing to measure.", hint="leave ours on, or name a peer")
    names = sizes_of(models or default_models(place), image_sizes)
    plans = [plan_for(name, place, work, batch_sizes, precisions, modes, systems, exact_gelu) for name in names]
    clock = time.process_time if shared else time.perf_counter
    machine = look(place, ("fp32", "bf16") if place.type == "cpu" else ("bf16", *(["fp8"] if has_fp8(place) else [])), clock)
    seconds = budget_s if budget_s is not None else (1.5 if place.type == "cpu" else 3.0)
    rows: list[Row] = []
    with Progress(quiet=not progress) as line:
        for model, config, cases in plans:
            line.say(f"{model}: {len(cases)} cases") if len(plans) > 1 else None
            stand = Stand(model, config, place, machine, seconds, runs, line, clock)
            found = stand.swept(cases) if sweep else stand.measured(cases)
            if fast and place.type == "cpu" and "infer" in work and ours:
                found += stand.runtimes(cases)
            for row in with_ratios(found):
                rows.append(row)
                if each is not None:
                    each(row)
    own = ["seconds are this process's own processor time, on one thread"] if shared else []
    versions = {name: version_of(name) for name in systems if name != OURS}
    return Bench(
        machine,
        tuple(rows),
        versions,
        (*notes(systems, peers, plans, rows), *busy(rows), *own),
        time.perf_counter() - begun,
        str(date.today()),
    )


# ---------------------------------------------------------------- what to measure


Plan = tuple[str, Any, list[Case]]


def check(work: Sequence[str], modes: Sequence[str], precisions: Sequence[str]) -> None:
    for value in work:
        if value not in WORK:
            raise UsageError(f"There is no work {value!r}{nearest(value, WORK)}.")
    for value in modes:
        if not any(suits(value, kind) for kind in work):
            parts_of(value, work[0])  # says what is wrong
    known = ("fp32", "tf32", "bf16", "fp16", "fp8")
    for value in precisions:
        if value not in known:
            raise UsageError(f"There is no precision {value!r}{nearest(value, known)}.")


def suits(mode: str, work: str, *, peer: bool = False) -> bool:
    """Whether a mode has a meaning for a kind of work; the peers have none of our additions."""
    try:
        parts_of(mode, work)
    except UsageError:
        return False
    return not peer or mode in COMPILER


def chosen_peers(peers: bool | Sequence[str]) -> tuple[str, ...]:
    if peers is False or peers == ():
        return ()
    here = installed()
    wanted = PEERS if peers is True else tuple(peers)
    for name in wanted:
        if name not in PEERS:
            raise UsageError(f"There is no peer {name!r}{nearest(name, PEERS)}.")
        if peers is not True and name not in here:
            raise ResourceError(f"{name} is not installed here.", hint="pip install 'vitrail[parity]' brings timm and transformers")
    found = tuple(name for name in wanted if name in here)
    if not found:
        raise ResourceError(
            "None of timm, transformers, torchvision and vit-pytorch is installed here.", hint="pip install 'vitrail[parity]'"
        )
    return found


def default_models(place: torch.device) -> tuple[str, ...]:
    return ("B/16", "L/16") if place.type == "cuda" else ("S/16", "B/16")


def sizes_of(models: Iterable[str], image_sizes: Sequence[int]) -> list[str]:
    """Every model at every size, as names."""
    return [f"{name.partition('@')[0]}@{side}" if side else name for name in models for side in (image_sizes or (0,))]


def plan_for(
    name: str,
    place: torch.device,
    work: Sequence[str],
    batch_sizes: Sequence[int],
    precisions: Sequence[str],
    modes: Sequence[str],
    systems: Sequence[str],
    exact_gelu: bool = False,
) -> Plan:
    """The cases of one model: for every kind of work and batch size, ours, then the peers."""
    config: Any = config_for(name)
    if (exact_gelu or any(system != OURS for system in systems)) and not comparable(config):
        config = config.replace(activation="gelu")  # the peers', so that the work is the same
    peers = [system for system in systems if system != OURS and not comparable(config)]
    cases = []
    for kind in WORK:
        for batch in (batch_sizes or default_batches(kind, config, place)) if kind in work else ():
            for precision in (precisions or default_precisions(place)) if OURS in systems else ():
                cases += [Case(kind, OURS, name, batch, mode, precision) for mode in our_modes(kind, batch, place, modes)]
            for peer in peers:
                for precision in peer_precisions(kind, place, precisions):
                    cases += [Case(kind, peer, name, batch, mode, precision) for mode in peer_modes(kind, batch, place, modes)]
    return name, config, cases


def default_batches(kind: str, config: Any, place: torch.device) -> tuple[int, ...]:
    if place.type != "cuda":
        return (1, 8) if kind == "infer" else (8,)
    if kind == "infer":
        return (1, 256)
    return (256,) if config.width <= 768 else (128,) if config.width <= 1024 else (64,)


def has_fp8(place: torch.device) -> bool:
    return place.type == "cuda" and torch.cuda.get_device_capability(place) >= (8, 9)


def default_precisions(place: torch.device) -> tuple[str, ...]:
    if place.type != "cuda":
        return ("fp32",)
    return ("bf16", "fp8") if has_fp8(place) else ("bf16",)


def peer_precisions(kind: str, place: torch.device, precisions: Sequence[str]) -> tuple[str, ...]:
    """The peers have no fp8; in bf16 they may train in either of two ways, and the better one counts."""
    named = tuple(dict.fromkeys("bf16" if name == "fp8" else name for name in precisions or default_precisions(place)))
    return tuple(way for name in named for way in ((name, "bf16-masters") if (name, kind) == ("bf16", "train") else (name,)))


def our_modes(kind: str, batch: int, place: torch.device, modes: Sequence[str]) -> tuple[str, ...]:
    if asked := tuple(mode for mode in modes if suits(mode, kind)):
        return asked
    if place.type != "cuda":
        return ("eager",)
    if kind == "train":
        return ("compile",)
    return ("graph", "compile+graph", "max-autotune+graph") if batch <= 8 else ("compile", "max-autotune")


def peer_modes(kind: str, batch: int, place: torch.device, modes: Sequence[str]) -> tuple[str, ...]:
    if asked := tuple(mode for mode in modes if suits(mode, kind, peer=True)):
        return asked
    if place.type != "cuda":
        return ("eager",)
    return ("reduce-overhead", "max-autotune") if kind == "infer" and batch <= 8 else ("compile", "max-autotune")


def notes(systems: Sequence[str], peers: bool | Sequence[str], plans: Sequence[Plan], rows: Sequence[Row]) -> Iterable[str]:
    yield from (f"{row.case.model} by Vitrail: {row.path}" for row in {row.path: row for row in reversed(rows) if row.path}.values())
    if missing := [name for name in PEERS if name not in systems] if peers is True else []:
        yield f"not installed here: {', '.join(missing)}"
    for name, config, _ in plans:
        if peers and (why_not := comparable(config)):
            yield f"{name} has no peers: {why_not}"
    if "vit-pytorch" in systems:
        yield "vit-pytorch's ViT has another patch projection and no bias on q, k, v: its logits and losses are its own"


def busy(rows: Sequence[Row]) -> Iterable[str]:
    spreads = [row.timing.spread for row in rows if row.timing and row.timing.n >= 3]
    if spreads and sorted(spreads)[len(spreads) // 2] > BUSY:
        yield "the passes differ widely: the machine had something else to do, and only large differences mean something"


# ---------------------------------------------------------------- measuring


class Stand:
    """One model on one device: cases in, rows out."""

    def __init__(
        self,
        name: str,
        config: Any,
        device: torch.device,
        machine: Machine,
        budget_s: float,
        runs: int,
        line: Progress,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.name, self.config, self.device, self.machine = name, config, device, machine
        self.budget_s, self.runs, self.line, self.clock = budget_s, runs, line, clock
        self.flops = 2 * cost_of(config).macs
        self.weights = weights_for(config)
        self.known: dict[tuple[str, int], Any] = {}  # (work, batch) -> our logits or losses, which the others must meet

    def measured(self, cases: Sequence[Case]) -> list[Row]:
        """A row a case, in order. On a CPU the systems at the same work take turns."""
        if self.device.type == "cuda":
            return [self.alone(case) for case in cases]
        keys = list(dict.fromkeys((case.work, case.batch) for case in cases))
        return [row for key in keys for row in self.in_turns([case for case in cases if (case.work, case.batch) == key])]

    def alone(self, case: Case) -> Row:
        self.line.show(str(case))
        self.clear()
        try:
            ready = self.ready(case)
            seconds = passes(ready.once, self.device, warm_up=5, runs=self.runs, budget_s=self.budget_s)
            memory = torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None
            return self.row(case, Timing.of(seconds), ready, memory)
        except Failure as error:
            return Row(case, error=reason(error))

    def in_turns(self, cases: Sequence[Case]) -> list[Row]:
        ready: dict[Case, Prepared] = {}
        failed: dict[Case, Row] = {}
        for case in cases:
            self.line.show(f"{case}: first pass")
            try:
                ready[case] = self.ready(case)
            except Failure as error:
                failed[case] = Row(case, error=reason(error))
        seconds: dict[Case, list[float]] = {case: [] for case in ready}
        begun, rounds, budget = time.perf_counter(), 0, self.budget_s * len(ready)
        spent = lambda: time.perf_counter() - begun
        while ready and (rounds == 0 or (rounds < self.runs and spent() < (budget if rounds >= 3 else 4 * budget))):
            for case, prepared in ready.items():
                seconds[case] += passes(prepared.once, self.device, warm_up=0, runs=1, budget_s=0.0, least=1, clock=self.clock)
            rounds += 1
            self.line.show(f"{cases[0].work} {self.name} batch {cases[0].batch}: round {rounds}")
        return [failed[case] if case in failed else self.row(case, Timing.of(seconds[case]), ready[case], None) for case in cases]

    def ready(self, case: Case) -> Prepared:
        return prepare(
            case, self.config, self.weights, self.device, steps_compared=LOSSES.get(self.device.type, 2) if case.work == "train" else 0
        )

    def row(self, case: Case, timing: Timing, ready: Prepared, memory: float | None) -> Row:
        rate = case.batch / timing.median
        tflops = rate * self.flops * (3 if case.work == "train" else 1) / 1e12
        products = self.machine.products
        ceiling = products.get(case.precision, products.get("bf16" if case.precision.startswith("bf16") else "fp32"))
        share = tflops / ceiling if ceiling else None
        known = {"losses": tuple(ready.losses), "path": ready.path, "agrees": self.distance(case, ready)}
        return Row(case, timing, rate, tflops, share, memory_gib=memory, **known)  # type: ignore[arg-type]

    def distance(self, case: Case, ready: Prepared) -> float | None:
        """How far a system's logits are from ours in fp32, or its losses from those of the first that was measured."""
        found = torch.tensor(ready.losses, dtype=torch.float64) if case.work == "train" else ready.logits
        if found is None or found.numel() == 0 or case.system not in (OURS, *SAME_FUNCTION):
            return None
        expected = self.known.setdefault((case.work, case.batch), found) if case.work == "train" else self.exact(case.batch)[: len(found)]
        return float((found - expected).abs().max() / expected.abs().max())

    def exact(self, batch: int) -> Tensor:
        """Our logits in fp32, plainly computed."""
        count = min(batch, 4)
        if ("exact", count) not in self.known:
            case = Case("infer", OURS, self.name, count)
            self.known["exact", count] = prepare(case, self.config, self.weights, self.device).logits
        return self.known["exact", count]

    def clear(self) -> None:
        """Nothing of the case before may count in this one."""
        gc.collect()
        if self.device.type == "cuda":
            torch._dynamo.reset()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    # ---- over batch sizes

    def swept(self, cases: Sequence[Case]) -> list[Row]:
        """Batch sizes doubled until they bring nothing more: one row a system, its best, with the largest batch that fits."""
        contestants = list(dict.fromkeys(case.with_batch(1) for case in cases))
        return [self.climbed(case) for case in contestants]

    def climbed(self, case: Case) -> Row:
        best, batch = self.alone(case), 2
        idle = 0
        while idle < 2 and not best.error and batch <= LARGEST:
            row = self.alone(case.with_batch(batch))
            if row.error:
                break
            idle = 0 if row.images_per_s > WORTH * best.images_per_s else idle + 1
            best = max(best, row, key=lambda r: r.images_per_s)
            if self.device.type != "cuda" and row.timing is not None and row.timing.median > self.budget_s:
                break
            batch *= 2
        if best.error or self.device.type != "cuda":
            return best
        return replace(best, largest_batch=self.largest(case, at_least=best.case.batch))

    def largest(self, case: Case, at_least: int) -> int:
        """The largest batch that goes through the device's memory, to one part in sixteen."""
        eager = replace(case, mode="eager")
        low, high = at_least, at_least
        while high <= LARGEST and self.fits(eager.with_batch(high)):
            low, high = high, high * 2
        step = max(1, low // 16)
        while high - low > step:
            middle = (low + high) // 2
            low, high = (middle, high) if self.fits(eager.with_batch(middle)) else (low, middle)
        return low

    def fits(self, case: Case) -> bool:
        self.line.show(f"{case}: does it fit?")
        self.clear()
        try:
            prepare(case, self.config, self.weights, self.device).once()
            torch.cuda.synchronize(self.device)
        except torch.OutOfMemoryError:
            return False
        except ResourceError:  # the step's own word for it
            return False
        return True

    # ---- the runtimes of `--fast`

    def runtimes(self, cases: Sequence[Case]) -> list[Row]:
        """What `--fast` chooses from, at each batch size: each with its distance from the exact model."""
        from vitrail.ship.fast import choose
        from vitrail.ship.predictor import Predictor

        model: Any = build(self.config)
        model.load_state_dict(self.weights)
        predictor, rows = Predictor(model, device="cpu"), []
        for batch in dict.fromkeys(case.batch for case in cases if case.work == "infer"):
            self.line.show(f"{self.name} batch {batch}: the runtimes of --fast")
            choice = choose(predictor, batch_size=batch, seconds=self.budget_s)
            for found in choice.candidates:
                case = Case("infer", OURS, self.name, batch, f"--fast: {found.name}", "as named")
                if found.error or not found.passed:
                    rows.append(Row(case, error=found.error or f"out of bounds: total variation {found.total_variation:.1e}"))
                    continue
                best = Timing(1, *(3 * [batch / found.images_per_s]))
                tflops = found.images_per_s * self.flops / 1e12
                rows.append(Row(case, best, found.images_per_s, tflops, agrees=found.total_variation))
        return rows


def weights_for(config: Any) -> dict[str, Tensor]:
    """The paper's initialisation, with a head that is not zero: a zero one would hide what the blocks do."""
    model: Any = build(config, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name in ("head.weight", "head_dist.weight"):
                parameter.normal_(0, 0.02, generator=generator)
    return {name: value.detach() for name, value in model.state_dict().items()}


def reason(error: BaseException) -> str:
    text = "out of memory" if isinstance(error, torch.OutOfMemoryError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:200]


def with_agreement(rows: Sequence[Row]) -> list[Row]:
    """Losses against those of the first row at the same work and batch that are ours."""
    known: dict[int, Tensor] = {}
    found = []
    for row in rows:
        losses = torch.tensor(row.losses, dtype=torch.float64)
        if row.case.system in (OURS, *SAME_FUNCTION) and len(losses):
            expected = known.setdefault(row.case.batch, losses)
            row = replace(row, agrees=float((losses - expected).abs().max() / expected.abs().max()))
        found.append(row)
    return found


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Ours against the best peer at the same work: each peer at its best mode, the table shows them all."""
    best: dict[tuple[str, int], float] = {}
    for row in rows:
        if row.case.system != OURS and row.timing:
            key = (row.case.work, row.case.batch)
            best[key] = max(best.get(key, 0.0), row.images_per_s)
    reached = lambda row: best.get((row.case.work, row.case.batch))
    return [replace(row, ratio=row.images_per_s / found) if row.case.system == OURS and row.timing and (found := reached(row)) else row
            for row in rows]  # fmt: skip
