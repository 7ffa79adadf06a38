"""A method as a record: its function, its options, what it needs of a model, and how tables and figures show it.

Whoever adds a method writes one `Method`; the config, the plan, cell keys, cost estimates, tables and figures follow
from it. No torch here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal

from lrp_core.lazy import named
from lrp_core.records.capabilities import POSITIONS, Capability
from lrp_core.records.explained import LINEAR, whichever
from lrp_core.records.finer import FINER
from lrp_core.records.option import Option
from lrp_core.records.types import FULL, Batch, Relevance, Request, Results, UnsupportedMethod, UserError, nearest

if TYPE_CHECKING:
    from lrp_core.families import Family
    from lrp_core.records.ablated import Ablated, UnitRelevance
    from lrp_core.views.view import ModelView

MethodFamily = Literal["gradient", "attention", "vector", "perturbation", "representation", "baseline", "planted"]
#: Settings of a run, handed to functions that name them. They change no number, but for the seed, and that only where
#: the record says so.
SETTINGS = ("checkpoint", "byte_budget", "token_budget", "clock", "seed", "texts")
_RESERVED = ("name", "method", "view", "batch", "requests", "explanation", "embedding", *FINER, *SETTINGS)
LAST = 1000  # the order of methods that say nothing about it: behind those that do, by name


@dataclass(frozen=True)
class Method:
    """A method, callable as `method(view, batch)`; `configured` binds options, optionally under another name.

    `explain(view, batch, requests, **options) -> {request: Relevance}` computes many requests of one pass together. It
    gets every option by name, `heads=True` or another of FINER where it is wanted and given, and the SETTINGS that it
    names. The requests that it gets are `bound`.

    >>> method = Method("nearest", version=1, label="Nearest", explain="my_package.nearest:explain", conserves=False)
    >>> method.configured("nearest_again").name
    'nearest_again'
    """

    name: str
    version: int  # raised when the numbers change: stored relevance of older versions is stale
    label: str  # in tables and figures
    explain: str | Callable[..., Results] = ""  # or "module:function", imported when it is first called
    family: MethodFamily = "gradient"
    options: tuple[Option, ...] = ()
    seeded: bool = False  # whether numbers depend on the run's seed, which is then handed over and enters the cell key
    needs: tuple[Capability, ...] = ()
    gives: tuple[str, ...] = ("tokens",)  # tokens, and any of FINER; or units, of what is made of a run's ablations
    #: The relevance of units of a prompt from an `Ablated` and the options, where it gives units.
    from_ablations: str | Callable[..., UnitRelevance] = ""
    explanations: tuple[str, ...] = LINEAR
    embeddings: tuple[str, ...] = ("full", "partial")
    conserves: bool = True  # False where no sum is promised, so that no residual is reported
    passes: str = ""  # the pass it is computed in, which methods of one function share; default: its own name
    #: Cost of the pass in forwards, beside a backward for each set of rules and explained number; a function of the
    #: option values and of a sample's tokens where it depends on them. Numbers were measured on a CPU at the geometries
    #: of bert-base and gpt2 (benchmarks/results/job-cpu.json) and rounded up.
    forwards: float | Callable[[Mapping[str, Any], float], float] = 1.0
    again: float | Callable[[Mapping[str, Any], float], float] = 0.0  # of these, for each further explained number
    rules: str | None = None  # methods of equal rules share a backward pass for each explanation; None: there is none
    measure: str = "product"  # of those: what becomes of gradient and value, elementwise: product | absolute | square
    instead: str | None = None  # the method to use where this one is not defined
    #: The method that gives the same numbers by other means, and the options with which this one does.
    same_as: tuple[str, Mapping[str, Any]] | None = field(default=None, hash=False)
    order: int = LAST  # position in tables
    column: str = ""  # methods of one column stand in for each other; default: a column of its own
    colour: str | None = None  # in figures; None takes one that is left
    unstable: bool = False  # divides by numbers near 0: the report says how large its relevance gets, beside others
    #: Several tokens of an answer: explained together, as one number ("together"), or one by one, and the weighted sum
    #: of what is said of each ("summed"); "" where the method refuses them.
    spans: Literal["", "together", "summed"] = ""
    inverted: bool = False  # whether tables of faithfulness show its relevance with the sign reversed, too
    about: str = ""  # what it is, in half a sentence
    source: str = ""  # paper and equation
    weak: str = ""  # why it may do no better than chance without a fault, in a sentence that the report adds
    base: str = ""  # the record that this one was configured from; default: itself
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)  # of every option

    def __repr__(self) -> str:
        return f"<Method {self.name}: {self.about or self.label}>"

    def __post_init__(self) -> None:
        for name in ("passes", "column", "base"):
            if not getattr(self, name):
                object.__setattr__(self, name, self.name)
        for option in self.options:
            if option.name in _RESERVED:
                raise UserError(f"method {self.name}: no option may be named {option.name!r}")
        defaults = {option.name: option.default for option in self.options}
        object.__setattr__(self, "values", self._checked({**defaults, **self.values}))

    def __call__(
        self,
        view: ModelView,
        batch: Batch,
        *,
        explanation: str | None = None,
        embedding: str | None = None,
        **options: Any,
    ) -> Relevance:
        """Contrastive with full embeddings unless told otherwise or impossible (no foil, no such choice).

        `options` are any of FINER, the method's own and the SETTINGS that its function knows. Raises UserError for
        others, UnsupportedMethod for a model that lacks what the method needs, or for heads, say, where it gives none.
        """
        explanation = explanation or self.usual_explanation(batch.foil_ids is not None)
        request = Request(self.name, explanation, embedding or self.embeddings_of(view.family.capabilities)[0])
        self.check(request)
        finer = {name: True for name in FINER if options.pop(name, False)}
        for name in finer:
            record = FINER[name]
            if name not in self.gives:
                raise UnsupportedMethod(f"{self.name} gives no {record.title}")
            missing = [need for need in record.needs if need not in view.family.capabilities]
            _require(record.title, missing[:1], view.family)
        settings = {name: options.pop(name) for name in SETTINGS if name in options and name in self._parameters}
        method = self.configured(**options) if options else self
        request = method.bound(request)
        return method.compute(view, batch, [request], **finer, **settings)[request]

    def usual_explanation(self, has_foil: bool) -> str:
        """The explanation that is computed by default."""
        usual = whichever(has_foil).name
        return usual if usual in self.explanations else self.explanations[0]

    def compute(self, view: ModelView, batch: Batch, requests: Sequence[Request], **settings: Any) -> Results:
        """Call `explain` with the bound options, the requested relevance of FINER, and the `settings` that it takes.

        `requests` carry the base names of this method and of others with the same function and option values. The
        function has the model to itself meanwhile; rows it cannot explain raise UnusableRows (see
        `lrp_core.views.guard`). Requests that name labels are explained for these, whatever the batch's targets (see
        `lrp_core.views.labels`).
        """
        from lrp_core.views.guard import guarded
        from lrp_core.views.labels import explained_by_label
        from lrp_core.views.spans import summed

        self.require(view.family)
        if "tokens" not in self.given:
            raise UnsupportedMethod(
                f"{self.name} gives no relevance of tokens: it is computed from the `ablations` of a run"
            )
        if batch.span_ids is not None and not self.spans:
            raise UnsupportedMethod(f"{self.name} explains one token of an answer at a time, no span")
        if POSITIONS not in view.family.capabilities and any(request.embedding == FULL for request in requests):
            lacks = f"{POSITIONS.says}, which {view.family.title} do not have"
            raise UnsupportedMethod(f"{self.name} of the full embedding needs {lacks}: ask for embedding 'partial'")
        known = {name: value for name, value in settings.items() if name in self._parameters and name not in FINER}
        known |= {name: True for name in FINER if settings.get(name, False)}
        if not self.seeded:
            known.pop("seed", None)  # it is not in the cell key

        def explain(batch: Batch, requests: Sequence[Request], **more: Any) -> Results:
            return guarded(self.function, view, batch, requests, **self._of_pass, **known | more)

        if batch.span_ids is not None and self.spans == "summed":
            if any(name != "layers" and settings.get(name) for name in FINER):
                raise UnsupportedMethod(
                    f"{self.name} explains a span token by token: it gives relevance of tokens alone"
                )
            return summed(explain, batch, requests, shared=self.shares_forwards)
        if all(request.label is None for request in requests):
            return explain(batch, requests)
        return explained_by_label(explain, view, batch, requests, shared=self.shares_forwards)

    def bound(self, request: Request) -> Request:
        """A request of this method as `explain` gets it: by its base name, with the options that go by request."""
        options = tuple((option.name, self.values[option.name]) for option in self.options if option.per_request)
        return replace(request, method=self.base, options=options)

    def configured(self, name: str | None = None, **values: Any) -> Method:
        """This method with option `values` bound, under `name`. Raises UserError for unknown options and bad values."""
        values = {**self.values, **self._checked(values)}
        if name is None or name == self.name:
            return replace(self, values=values)
        changed = self._changed(values, self.options)
        label = f"{self.label} ({', '.join(changed)})" if changed else name
        return replace(self, name=name, label=label, values=values, column=name, colour=None)

    def key(self) -> list[Any]:
        """The method in a cell key: the record, its version, and the value of every option that was not added later, or
        that differs from its default.
        """
        keyed = [o.name for o in self.options if not o.added_later or self.values[o.name] != o.default]
        return [self.base, self.version, sorted([name, self.values[name]] for name in keyed)]

    @property
    def shares_forwards(self) -> bool:
        """True if predictions of the same text share a forward pass: the function takes the setting `texts`."""
        return "texts" in self._parameters

    @property
    def checkpoints(self) -> bool:
        """True if blocks can be recomputed in the backward pass to save memory: the function takes `checkpoint`."""
        return "checkpoint" in self._parameters

    @property
    def group(self) -> tuple[Any, ...]:
        """Equal for methods that one call of `explain` computes together."""
        return self.function, tuple(self._of_pass.items())

    @property
    def pass_name(self) -> str:
        """The name of this call of `explain` in measurements; other values of options are another pass."""
        changed = self._changed(self.values, [option for option in self.options if not option.per_request])
        return f"{self.passes}({','.join(changed)})" if changed else self.passes

    @staticmethod
    def _changed(values: Mapping[str, Any], options: Sequence[Option]) -> list[str]:
        """Those of the `values` that are not an option's default, as labels show them."""
        changed = [option for option in options if values[option.name] != option.default]
        return [f"{option.name}={option.shown(values[option.name])}" for option in changed]

    def cost(self, tokens: float, numbers: int = 1) -> float:
        """Forwards that a pass over a sample of so many `tokens` costs, beside the backward passes of `rules`.

        `numbers` are explained at once: target and foil, say, and the target alone.
        """
        once = self.forwards(self.values, tokens) if callable(self.forwards) else self.forwards
        again = self.again(self.values, tokens) if callable(self.again) else self.again
        return once + (numbers - 1) * again

    @property
    def given(self) -> tuple[str, ...]:
        """Tokens, and those of FINER that the method gives under the values of its options."""
        withheld: set[str] = set()
        for option in self.options:
            if option.withholds:
                withheld.update(option.withholds(self.values[option.name]))
        return tuple(name for name in self.gives if name not in withheld)

    def missing(self, capabilities: Collection[Capability]) -> tuple[Capability, ...]:
        """The capabilities that the method needs and a model with these `capabilities` lacks."""
        needs = list(self.needs)
        for option in self.options:
            value = self.values[option.name]
            if value in option.needs:
                needs.append(option.needs[value])
        return tuple(need for need in needs if need not in capabilities)

    def applies(self, capabilities: Collection[Capability]) -> bool:
        """True if the method explains tokens, not sources as a whole, and needs no more than these `capabilities`."""
        return "tokens" in self.gives and not self.missing(capabilities)

    def embeddings_of(self, capabilities: Collection[Capability]) -> tuple[str, ...]:
        """The choices of an embedding that a model with these capabilities has."""
        return tuple(choice for choice in self.embeddings if choice != FULL or POSITIONS in capabilities)

    def require(self, family: Family) -> None:
        """Raises UnsupportedMethod, naming the method to use instead, for models that lack what this method needs."""
        missing = self.missing(family.capabilities)
        instead = f": use {self.instead}" if self.instead and all(need.stands_in for need in missing) else ""
        _require(self.name, missing, family, instead)

    def check(self, request: Request) -> None:
        """Raises UnsupportedMethod if this method has no such explanation or embedding."""
        self._choose("explanation", request.explanation, self.explanations)
        self._choose("embedding", request.embedding, self.embeddings)

    def _choose(self, title: str, asked: str, offered: Sequence[str]) -> None:
        if asked not in offered:
            raise UnsupportedMethod(f"{self.name} has no {title} {asked!r}; choose {' or '.join(offered)}")

    @property
    def _of_pass(self) -> dict[str, Any]:
        """Values of the options that all requests of a call of `explain` have in common."""
        return {option.name: self.values[option.name] for option in self.options if not option.per_request}

    @cached_property
    def function(self) -> Callable[..., Results]:
        """`explain` itself. Raises UserError where it names what cannot be imported."""
        function: Callable[..., Results] = self._imported(self.explain)
        return function

    def of_units(self, ablated: Ablated) -> UnitRelevance:
        """The relevance of units, with the bound options. Raises UserError for ablations that lack what it needs."""
        function: Callable[..., UnitRelevance] = self._imported(self.from_ablations)
        return function(ablated, **self.values)

    def _imported(self, function: Any) -> Any:
        """A function, or what "module:function" names. Raises UserError where it cannot be imported."""
        if not isinstance(function, str):
            return function
        try:
            return named(function)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"method {self.name}: there is no function {function!r} ({error})") from error

    @cached_property
    def _parameters(self) -> frozenset[str]:
        if not self.explain:
            return frozenset()  # it is made of ablations
        by_name = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        parameters = signature(self.function).parameters
        return frozenset(name for name, parameter in parameters.items() if parameter.kind in by_name)

    def _checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        options = {option.name: option for option in self.options}
        for name in values:
            if name not in options:
                known = nearest(name, options) if options else "; it has none"
                raise UserError(f"{self.name} has no option {name!r}{known}")
        return {name: options[name].check(value, self.name) for name, value in values.items()}


def _require(title: str, missing: Sequence[Capability], family: Family, instead: str = "") -> None:
    """Raises UnsupportedMethod for what needs capabilities that are `missing`."""
    if missing:
        says = " and ".join(need.says for need in missing)
        raise UnsupportedMethod(f"{title} needs {says}, which {family.title} do not have{instead}")
