"""Worker slots: how many workers of a model a cluster holds, on which of its nodes, and how that changes.

The driver counts slots itself and says where workers go. A cluster whose nodes come and go is looked at again and
again: workers that lost their node are counted on another one first, then pools grow.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from jobs.cluster.labels import Needs, allowed, known, matches
from jobs.config import ModelConfig, RunConfig

Node = tuple[Mapping[str, str], float]  # its labels, and how many GPUs or CPUs it has


@dataclass(frozen=True)
class Share:
    """The resources of a worker: GPUs if the run uses them, else one CPU."""

    gpus: float
    cpus: float
    labels: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()  # Ray's ids of the nodes where its workers were counted; none of a cluster that grows
    others: tuple[str, ...] = ()  # of those that would do, once these are gone

    @property
    def size(self) -> float:
        return self.gpus or self.cpus

    def selectors(self) -> list[dict[str, str]]:
        """Label selectors for Ray: where workers go, and where they go instead once those nodes are gone.

        Ray would put them wherever there is room, which is not where the driver counted it: then two workers of one GPU
        take one of each node with two, and a worker of two fits nowhere.
        """
        anywhere = {key: f"in({','.join(values)})" for key, values in allowed(self.labels).items()}
        known = [{"ray.io/node-id": f"in({','.join(ids)})"} for ids in (self.nodes, self.others) if ids]
        return [*known, anywhere] if known or anywhere else []


def share_of(model: ModelConfig, on_gpu: bool, needs: Needs = ()) -> Share:
    """The resources of a worker of the model; `needs` are labels of its precisions beside those of the model."""
    # A GPU worker reserves no CPU: with few of them, that would starve the tasks that feed it.
    return Share(model.gpus, 0, tuple(sorted({*model.labels.items(), *needs}))) if on_gpu else Share(0, 1)


@dataclass
class Workers:
    """The number of workers of a pool, which may rise while the pool runs."""

    size: int
    most: int  # that the pool may come to have
    _listeners: list[Callable[[int], None]] = field(default_factory=list)

    @property
    def may_grow(self) -> bool:
        return self.size < self.most

    def heed(self, listener: Callable[[int], None]) -> None:
        """Call `listener` with the number now, and with each later one."""
        self._listeners.append(listener)
        listener(self.size)

    def grow(self, size: int) -> None:
        self.size = size
        for listener in self._listeners:
            listener(size)


class Slots:
    """Worker slots of the cluster, counted on the driver by node: a worker's GPUs are on one node."""

    def __init__(
        self,
        nodes: Sequence[Node],
        ids: Sequence[str] = (),
        precisions: Iterable[Needs] = (),
        look: Callable[[], Mapping[str, Node]] | None = None,
    ) -> None:
        """`ids` are Ray's of the nodes, empty where they are what the cluster has yet to grow to.

        `precisions` are the labels that each precision of the run needs: a node that suits many is given out last.
        `look` gives the nodes that are there now, by their ids; None where they are taken to stay.
        """
        self._nodes, self._ids = [(known(labels), size) for labels, size in nodes], list(ids)
        self._at_first = len(nodes)
        self._precisions, self._look = list(precisions), look
        self._free = [size for _, size in nodes]
        self._taken: list[tuple[Share, list[int]]] = []  # the nodes of each pool's workers
        self._lock = threading.Lock()

    def room(self, share: Share) -> int:
        """The number of workers of this share that an empty cluster could hold."""
        return sum(_fitting(size, share.size) for labels, size in self._nodes if matches(labels, share.labels))

    def take(self, share: Share, fewest: int, most: int) -> list[int] | None:
        """The nodes of `fewest` to `most` new workers, as many as fit; None when not even the fewest do.

        `most` may be less than `fewest`: a run that continues may have work for one worker only.
        """
        with self._lock:
            taken: list[int] = []
            for node in self.able(share):
                taken += [node] * min(_fitting(self._free[node], share.size), most - len(taken))
            if len(taken) < min(fewest, most):
                return None
            for node in taken:
                self._free[node] -= share.size
            self._taken.append((share, taken))
            return taken

    def grow(self, share: Share, taken: list[int], most: int) -> bool:
        """Add a worker to a pool, in `taken`, if a node has room and the pool has fewer than `most`."""
        with self._lock:
            node = self._next(share) if len(taken) < most else None
            if node is None:
                return False
            self._free[node] -= share.size
            taken.append(node)
            return True

    def refresh(self) -> None:
        """Update the nodes of the cluster. Workers whose node is gone are counted on another node that has room.

        Ray starts them there by itself; one that fits nowhere goes to the next node that comes.
        """
        if self._look is None:
            return
        present = self._look()
        with self._lock:
            for node, name in enumerate(self._ids):
                if name not in present and self._nodes[node][1]:
                    self._nodes[node], self._free[node] = (self._nodes[node][0], 0.0), 0.0
            for name in present.keys() - set(self._ids):
                labels, size = present[name]
                self._ids.append(name)
                self._nodes.append((known(labels), size))
                self._free.append(size)
            for share, taken in self._taken:
                for worker, node in enumerate(taken):
                    other = None if self._nodes[node][1] else self._next(share)
                    if other is not None:
                        taken[worker] = other
                        self._free[other] -= share.size

    def _next(self, share: Share) -> int | None:
        """The node where one more worker fits."""
        return next((node for node in self.able(share) if _fitting(self._free[node], share.size)), None)

    def able(self, share: Share) -> list[int]:
        """Nodes that satisfy a demand, preferred ones first: those that declare it, and then those that fewer
        precisions need.

        Of nodes that came later, only those that say so will do: Ray finds them by their labels.
        """

        def does(node: int) -> bool:
            labels = self._nodes[node][0]
            is_said = node < self._at_first or all(key in labels for key, _ in share.labels)
            return is_said and matches(labels, share.labels)

        def order(node: int) -> tuple[int, int]:
            labels = self._nodes[node][0]
            unsaid = sum(key not in labels for key, _ in share.labels)
            return unsaid, sum(matches(labels, needs) for needs in self._precisions)

        return sorted(filter(does, range(len(self._nodes))), key=order)

    def placed(self, share: Share, taken: Sequence[int]) -> Share:
        """The share of workers that were counted on these nodes."""
        if not self._ids:
            return share
        matching = sorted(node for node in self.able(share) if self._nodes[node][1])
        nodes, others = (tuple(self._ids[node] for node in dict.fromkeys(slots)) for slots in (taken, matching))
        return replace(share, nodes=nodes, others=others)

    def give_back(self, share: Share, taken: Sequence[int]) -> None:
        with self._lock:
            self._taken = [pool for pool in self._taken if pool[1] is not taken]
            for node in taken:
                if self._nodes[node][1]:  # else it is gone
                    self._free[node] += share.size


def cluster_slots(config: RunConfig, on_gpu: bool) -> Slots:
    """The slots of the connected cluster, or of what it is configured to grow to."""
    precisions = [config.ray.needs((dtype,)) for dtype in config.ray.precisions]
    if config.ray.nodes is not None:
        kinds = [(nodes.labels, nodes.gpus if on_gpu else nodes.cpus, nodes.count) for nodes in config.ray.nodes]
        return Slots([(labels, size) for labels, size, count in kinds for _ in range(count)], (), precisions)
    look = partial(nodes_alive, "GPU" if on_gpu else "CPU")
    nodes = look()
    return Slots(list(nodes.values()), list(nodes), precisions, look)


def nodes_alive(kind: str) -> dict[str, Node]:
    """The nodes of the connected cluster by Ray's ids, with how much each has of "GPU" or "CPU"."""
    import ray

    alive = [node for node in ray.nodes() if node["Alive"]]
    return {node["NodeID"]: (node.get("Labels", {}), node["Resources"].get(kind, 0.0)) for node in alive}


def _fitting(free: float, size: float) -> int:
    return int(free / size + 1e-6)
