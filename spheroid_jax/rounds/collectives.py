"""What the devices of a mesh say to each other in a compiled program.

Read from the optimized HLO text, which is what runs: each collective with its bytes,
the groups of devices that take part and the mesh axes along which these lie. So that
"blocks exchange their interface alone" can be tested and not just said.
"""

import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.sharding import Mesh

Groups = tuple[tuple[int, ...], ...]

_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_INSTRUCTION = re.compile(
    rf"^\s*(?:ROOT )?%?[\w.-]+ = (.*?) ({'|'.join(_KINDS)})(-start)?\((.*)$"
)
_ARRAY = re.compile(r"\b(pred|bf16|[sufc]\d+\w*)\[([\d,]*)\]")
_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.-]+) \(.*\{$")
_LOOP = re.compile(r" while\(.*body=%?([\w.-]+)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
_CALLED = re.compile(r"(?:to_apply|calls|condition|\w+_computation)=%?([\w.-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_SOURCE = re.compile(r'op_name="([^"]*)"')


class Collective(NamedTuple):
    """One collective of a compiled program.

    Attributes:
      kind: such as ``all-reduce``.
      arrays: dtype and shape of what a device holds afterwards.
      bytes: of these arrays, or, where devices keep a share each, of what was reduced.
      times: executions in one call of the program; loops of unknown length count once.
      groups: indices into the mesh's flat devices that talk with each other.
      axes: mesh axes along which some group extends.
      source: the traced operation it comes from, empty if unknown.
    """

    kind: str
    arrays: tuple[tuple[str, tuple[int, ...]], ...]
    bytes: int
    times: int
    groups: Groups
    axes: tuple[str, ...]
    source: str

    @property
    def elements(self) -> int:
        """Elements of the largest array: 1 where only scalars are exchanged."""
        return max(math.prod(shape) for _, shape in self.arrays)


def collectives(compiled: Any, mesh: Mesh) -> list[Collective]:
    """Every collective of a program that was compiled for ``mesh``.

    Args:
      compiled: from ``jax.jit(f).lower(...).compile()``, or its HLO text.
      mesh: that of its arguments' shardings; its axes name the groups.

    Raises:
      ValueError: device groups are written in a way that is not known here.
    """
    text = compiled if isinstance(compiled, str) else compiled.as_text()
    bodies = _computations(text)
    times = _executions(bodies)
    return [
        _collective(match, mesh, times[name])
        for name, lines in bodies.items()
        for match in map(_INSTRUCTION.match, lines)
        if match and times[name]
    ]


def spanning(found: Iterable[Collective], axis: str) -> list[Collective]:
    """Those whose groups extend along a mesh axis."""
    return [collective for collective in found if axis in collective.axes]


def collectives_table(found: Sequence[Collective]) -> str:
    """A table of what is exchanged along which axes, the largest sum first.

    Lines of the same kind, axes and loop are added up.
    """
    sums: dict[tuple[str, str, int], list[int]] = {}
    for c in found:
        row = sums.setdefault((c.kind, " ".join(c.axes) or "none", c.times), [0, 0, 0])
        row[0] += 1
        row[1] += c.bytes
        row[2] += c.bytes * c.times
    ordered = sorted(sums.items(), key=lambda item: -item[1][2])
    head = ("collective", "along", "how many", "bytes", "times", "bytes a call")
    lines = [
        f"{kind:<20} {axes:<20} {n:>8} {once:>15,} {times:>6} {total:>15,}"
        for (kind, axes, times), (n, once, total) in ordered
    ]
    return "\n".join(["{:<20} {:<20} {:>8} {:>15} {:>6} {:>15}".format(*head), *lines])


def _collective(match: re.Match[str], mesh: Mesh, times: int) -> Collective:
    result, kind, start, rest = match.groups()
    arrays = [
        (dtype, tuple(int(n) for n in dims.split(",") if n))
        for dtype, dims in _ARRAY.findall(result)
    ]
    if start and kind in ("all-gather", "collective-permute"):
        # An asynchronous one returns its operands, its results and perhaps contexts.
        data = [a for a in arrays if a != ("u32", ())] or arrays
        arrays = data[len(data) // 2 :]
    groups = _groups(rest, mesh.size)
    size = sum(_width(dtype) * math.prod(shape) for dtype, shape in arrays) // 8
    if kind == "reduce-scatter":
        size *= len(groups[0])
    source = _SOURCE.search(rest)
    return Collective(
        kind,
        tuple(arrays),
        size,
        times,
        groups,
        _axes(groups, mesh),
        source.group(1) if source else "",
    )


def _width(dtype: str) -> int:
    """Bits of an element."""
    digits = re.search(r"\d+", dtype)
    return 8 if dtype == "pred" or digits is None else int(digits.group())


def _axes(groups: Groups, mesh: Mesh) -> tuple[str, ...]:
    shape = mesh.devices.shape
    places = [np.stack(np.unravel_index(group, shape)) for group in groups]
    return tuple(
        name
        for axis, name in enumerate(mesh.axis_names)
        if any(np.ptp(place[axis]) > 0 for place in places)
    )


def _groups(text: str, devices: int) -> Groups:
    """Device groups in any of the forms in which HLO writes them.

    A list ``{{0,1},{2,3}}``; pairs of a permutation; a reshaped and transposed range
    ``[2,2]<=[2,2]T(1,0)``; or axes of a mesh of its own, ``mesh['a'=2,'b'=2] {'b'}``,
    of which ``'b':(1)2`` is the part of 2 after a part of 1, with
    ``device_ids=([2,2]T(1,0))`` where it lies on the devices in another order.
    """
    if pairs := re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", text):
        return _lists(pairs.group(1))
    if ranged := re.search(r"replica_groups=\[([\d,]+)\]<=(\[\S+)", text):
        flat = _order(ranged.group(2), devices)
        return _rows(flat.reshape(_numbers(ranged.group(1))))
    if axes := re.search(
        r"replica_groups=@?mesh\[([^\]]*)\]"
        r"(?:, ?device_ids=\(((?:[^()]|\([^()]*\))*)\))? ?\{([^}]*)\}",
        text,
    ):
        sizes, order, chosen = axes.groups()
        return _mesh_groups(sizes, chosen, _order(order or "", devices))
    if listed := re.search(r"replica_groups=\{(\{[\d,{} ]*\})?\}", text):
        inside = listed.group(1)
        return _lists(inside) if inside else (tuple(range(devices)),)
    raise ValueError(f"device groups of an unknown form: {text[:200]}")


def _numbers(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def _lists(text: str) -> Groups:
    return tuple(tuple(_numbers(group)) for group in re.findall(r"\{([\d,]+)\}", text))


def _rows(groups: np.ndarray) -> Groups:
    return tuple(tuple(int(n) for n in group) for group in groups)


def _order(text: str, devices: int) -> np.ndarray:
    """Devices in the order of ``[4,2]T(1,0)``, a range that is reshaped and turned.

    An empty text leaves them as they are, any other lists them.
    """
    flat = np.arange(devices)
    if not text:
        return flat
    turned = re.match(r"\[([\d,]+)\](?:T\(([\d,]+))?", text)
    if turned is None:
        return np.array(_numbers(text))
    shape, order = turned.groups()
    axes = _numbers(order) if order else None
    return np.transpose(flat.reshape(_numbers(shape)), axes).ravel()


def _mesh_groups(sizes: str, chosen: str, order: np.ndarray) -> Groups:
    names, lengths = zip(*re.findall(r"'([^']*)'=(\d+)", sizes), strict=True)
    parts: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    for name, before, length in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", chosen):
        whole = int(lengths[names.index(name)])
        parts[name].append((int(before or 1), int(length or whole)))
    shape: list[int] = []
    moving: list[int] = []
    for name, length in zip(names, map(int, lengths), strict=True):
        done = 1
        for before, part in sorted(parts[name]):
            shape += [before // done, part]
            moving.append(len(shape) - 1)
            done = before * part
        shape.append(length // done)
    still = [axis for axis in range(len(shape)) if axis not in moving]
    flat = order.reshape(shape).transpose(still + moving)
    return _rows(flat.reshape(-1, math.prod(shape[axis] for axis in moving)))


def _computations(text: str) -> dict[str, list[str]]:
    """The lines of every computation by its name, the entry's under an empty one."""
    bodies: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if header := _COMPUTATION.match(line):
            lines = bodies.setdefault("" if header.group(1) else header.group(2), [])
        elif line.startswith("}"):
            lines = []
        else:
            lines.append(line)
    return bodies


def _executions(bodies: dict[str, list[str]]) -> dict[str, int]:
    """How often each computation runs in one call of the program."""
    calls: dict[str, list[tuple[str, int]]] = {name: [] for name in bodies}
    for name, lines in bodies.items():
        for line in lines:
            if loop := _LOOP.search(line):
                trips = _TRIPS.search(line)
                calls[name].append((loop.group(1), int(trips[1]) if trips else 1))
            called = _CALLED.findall(line)
            for branches in _BRANCHES.findall(line):
                called += [branch.strip(" %") for branch in branches.split(",")]
            calls[name] += [(other, 1) for other in called]
    times = dict.fromkeys(bodies, 0)

    def visit(name: str, count: int) -> None:
        times[name] += count
        for other, trips in calls[name]:
            if other in calls:
                visit(other, count * trips)

    visit("", 1)
    return times
