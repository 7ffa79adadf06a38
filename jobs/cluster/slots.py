"""Worker slots: how many workers of a model fit on a cluster, and on which of its nodes, by labels.

The driver itself counts slots and chooses the nodes of workers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from closelook.jobs.config import ModelConfig, RunConfig

#: (label, value) pairs that a node must have, or a better value.
Needs = Sequence[tuple[str, str]]
Node = tuple[Mapping[str, str], float]  # the labels of a node, and its number of GPUs or CPUs

#: Memory of GPUs as a label's value, such as 80gb; a worker that asks for a size may get any larger one.
_SIZE = re.compile(r"(\d+)gb")
_SIZES = (8, 12, 16, 24, 32, 40, 48, 64, 80, 94, 96, 141, 180, 192, 288)


def matches(labels: Mapping[str, str], needs: Needs) -> bool:
    """True if a node with these labels satisfies `needs`. A label that it lacks counts as satisfied."""
    return all(key not in labels or labels[key] in _sufficient(value, labels[key]) for key, value in needs)


def in_words(needs: Needs) -> str:
    """The needs as text: "label=value, label=value"."""
    return ", ".join(f"{key}={value}" for key, value in needs)


def _sufficient(smallest: str, *more: str) -> list[str]:
    """The values that satisfy a need for `smallest`: itself and, if it is a size of memory, all sizes not smaller."""
    size = _SIZE.fullmatch(smallest)
    if size is None:
        return [smallest]
    sized = {f"{number}gb" for number in _SIZES} | {smallest, *more}
    sizes = {name: int(match[1]) for name in sized if (match := _SIZE.fullmatch(name))}
    return sorted((name for name in sizes if sizes[name] >= int(size[1])), key=lambda name: sizes[name])


@dataclass(frozen=True)
class Share:
    """The resources of each worker of a pool: GPUs if the run uses them, else one CPU."""

    gpus: float
    cpus: float
    labels: tuple[tuple[str, str], ...] = ()  # that its node must have
    nodes: tuple[str, ...] = ()  # Ray's ids of the nodes with the pool's slots; () if nodes are yet to be started
    others: tuple[str, ...] = ()  # Ray's ids of all suitable nodes, for when those are lost
    workers: int = 1  # of the pool, at its start
    most: int = 1  # to which Ray Data may let the pool grow while it runs

    @property
    def size(self) -> float:
        """The GPUs of a worker, or its CPUs if it has none."""
        return self.gpus or self.cpus

    def selectors(self) -> list[dict[str, str]]:
        """Label selectors for Ray, in order of preference: the pool's nodes, other suitable nodes, any with its labels.

        Without them Ray would put workers on any node with room, not on those that the driver counted: two workers of
        one GPU could then take one GPU of each of two nodes, and a worker of two GPUs would fit nowhere.
        """
        anywhere = {key: f"in({','.join(_sufficient(value))})" for key, value in self.labels}
        known = [{"ray.io/node-id": f"in({','.join(ids)})"} for ids in (self.nodes, self.others) if ids]
        return [*known, anywhere] if known or anywhere else []


def share_of(model: ModelConfig, on_gpu: bool) -> Share:
    """The resources of a worker of the model."""
    # A GPU worker reserves no CPU: on a node with few CPUs, none would be left for the tasks that read its units.
    return Share(model.gpus, 0, tuple(sorted(model.labels.items()))) if on_gpu else Share(0, 1)


class Slots:
    """The free and taken worker slots of the cluster, by node. All GPUs of a worker are on one node."""

    def __init__(self, nodes: Sequence[Node], ids: Sequence[str] = ()) -> None:
        """`ids` are Ray's ids of the nodes; empty if the cluster has yet to start them."""
        self._nodes, self._ids = list(nodes), list(ids)
        self._free = [size for _, size in nodes]
        self._lock = threading.Lock()

    def room(self, share: Share) -> int:
        """The number of workers with this share that would fit if all slots were free."""
        return sum(_fitting(size, share.size) for labels, size in self._nodes if matches(labels, share.labels))

    def take(self, share: Share, fewest: int, most: int) -> list[int] | None:
        """Take slots for as many new workers as fit, from `fewest` to `most`; None if not even the fewest fit.

        Returns the node (index) of each. `most` may be less than `fewest`, if little work is left: then it is enough.
        """
        with self._lock:
            taken: list[int] = []
            for node in self.able(share):
                taken += [node] * min(_fitting(self._free[node], share.size), most - len(taken))
            if len(taken) < min(fewest, most):
                return None
            for node in taken:
                self._free[node] -= share.size
            return taken

    def able(self, share: Share) -> list[int]:
        """The nodes (indices) whose labels suit a share; those that lack the fewest of its labels first."""
        able = (node for node, (labels, _) in enumerate(self._nodes) if matches(labels, share.labels))
        return sorted(able, key=lambda node: sum(key not in self._nodes[node][0] for key, _ in share.labels))

    def placed(self, share: Share, taken: Sequence[int]) -> Share:
        """`share` with the ids of the nodes `taken` by a pool, and of all suitable nodes."""
        share = replace(share, workers=len(taken))
        if not self._ids:
            return share
        nodes, others = (tuple(self._ids[at] for at in dict.fromkeys(of)) for of in (taken, sorted(self.able(share))))
        return replace(share, nodes=nodes, others=others)

    def give_back(self, share: Share, taken: Sequence[int]) -> None:
        """Free the slots of a pool that has ended; `taken` is its list from `take`."""
        with self._lock:
            for node in taken:
                self._free[node] += share.size


def cluster_slots(config: RunConfig, on_gpu: bool) -> Slots:
    """The slots of the nodes in `ray.nodes` if these are configured, else of the connected cluster."""
    if config.ray.nodes is not None:
        kinds = [(nodes.labels, nodes.gpus if on_gpu else nodes.cpus, nodes.count) for nodes in config.ray.nodes]
        return Slots([(labels, size) for labels, size, count in kinds for _ in range(count)])
    nodes = nodes_alive("GPU" if on_gpu else "CPU")
    return Slots(list(nodes.values()), list(nodes))


def nodes_alive(kind: str) -> dict[str, Node]:
    """The labels and the number of GPUs or CPUs (`kind`: "GPU" or "CPU") of every live node, by Ray's id."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: (node.get("Labels", {}), node["Resources"].get(kind, 0.0)) for node in alive}


def _fitting(free: float, size: float) -> int:
    """The number of workers of this size that fit into `free`; 1e-6 allows for rounding of fractions of a GPU."""
    return int(free / size + 1e-6)
