"""A method as a record: its function, its options, what it needs of a model, and how tables and figures show it.

To add a method, write one `Method`: the config, the plan, cell keys, cost estimates, tables and figures follow from it.
Imports no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, Literal

from closelook.lrp_core.lazy import imported_object
from closelook.lrp_core.records.capabilities import POSITIONS, Capability
from closelook.lrp_core.records.explained import LINEAR, whichever
from closelook.lrp_core.records.finer import FINER
from closelook.lrp_core.records.option import Option
from closelook.lrp_core.records.types import (
    FULL,
    Batch,
    Relevance,
    Request,
    Requests,
    Results,
    UnsupportedMethod,
    UserError,
    nearest,
)

if TYPE_CHECKING:
    from closelook.lrp_core.families import Family
    from closelook.lrp_core.records.ablated import Ablated, UnitRelevance
    from closelook.lrp_core.views.view import ModelView

MethodFamily = Literal["gradient", "attention", "vector", "perturbation", "representation", "baseline", "planted"]
#: Settings of a run, passed to the functions of methods that have a parameter of that name. They change no numbers,
#: except the seed, and that only for methods whose record says `seeded`.
SETTINGS = ("checkpoint", "byte_budget", "token_budget", "clock", "seed", "texts")
_RESERVED = ("name", "method", "view", "batch", "requests", "explanation", "embedding", *FINER, *SETTINGS)
LAST = 1000  # the `order` of methods that give none: they come after all others, sorted by name


@dataclass(frozen=True)
class Method:
    """A method, callable as `method(view, batch)`; `configured` binds options, optionally under another name.

    `explain(view, batch, requests, **options) -> {request: Relevance}` computes many requests of one pass together. Its
    keyword arguments are every option but `per_request` ones, which each request holds, the kinds of FINER that are
    asked for (such as `heads=True`), and those SETTINGS that it has parameters for. Its requests come from `bound`.

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
    seeded: bool = False  # numbers depend on the run's seed, which is then passed to `explain` and enters the cell key
    needs: tuple[Capability, ...] = ()  # capabilities that the model must have
    gives: tuple[str, ...] = ("tokens",)  # "tokens" and names of FINER; or "units", computed from a run's ablations
    #: For methods that give units: the function (or "module:function") from an `Ablated` and the options to relevance.
    from_ablations: str | Callable[..., UnitRelevance] = ""
    explanations: tuple[str, ...] = LINEAR
    embeddings: tuple[str, ...] = ("full", "partial")
    conserves: bool = True  # promises that relevance sums to the explained number; False: no residual is reported
    passes: str = ""  # the name of its pass, which methods with the same function may share; default: its own name
    #: Cost of the pass in forward passes, without the backward passes of `rules`: a number, or a function of the option
    #: values and a sample's number of tokens. Measured on a CPU with the shapes of bert-base and gpt2
    #: (benchmarks/results/job-cpu.json) and rounded up.
    forwards: float | Callable[[Mapping[str, Any], float], float] = 1.0
    again: float | Callable[[Mapping[str, Any], float], float] = 0.0  # added to it by each further explained number
    #: Rules of the gradient pass: methods with equal rules share a backward pass for each explanation. None for methods
    #: that are not computed in the gradient pass.
    rules: str | None = None
    measure: str = "product"  # with `rules`, relevance from gradient and value elementwise: product | absolute | square
    instead: str | None = None  # the method that errors propose for models to which this one does not apply
    #: The method that gives the same numbers in another way, and the options with which this method does so.
    same_as: tuple[str, Mapping[str, Any]] | None = field(default=None, hash=False)
    order: int = LAST  # position in tables
    column: str = ""  # methods that apply to different models may share a column of tables; default: one of its own
    colour: str | None = None  # in figures; None: one that no other method has
    unstable: bool = False  # divides by numbers near 0: the report compares the size of its relevance with others
    #: How a span (several tokens of an answer) is explained: "together", as one number; "summed", token by token, the
    #: weighted relevances added up; "": not at all, and UnsupportedMethod is raised.
    spans: Literal["", "together", "summed"] = ""
    inverted: bool = False  # tables of faithfulness also show its relevance with the sign reversed
    about: str = ""  # a description in half a sentence
    source: str = ""  # paper and equation
    weak: str = ""  # a sentence for the report: why chance level need not mean that something is wrong
    base: str = ""  # the name of the record that this one was configured from; default: its own
    values: Mapping[str, Any] = field(default_factory=dict, hash=False)  # the value of every option

    def __repr__(self) -> str:
        return f"<Method {self.name}: {self.about or self.label}>"

    def __post_init__(self) -> None:
        for name in ("passes", "column", "base"):
            if not getattr(self, name):
                object.__setattr__(self, name, self.name)
        for option in self.options:
            if option.name in _RESERVED:
                raise UserError(
                    f"method {self.name}: the option name {option.name!r} is reserved (as are all of "
                    f"{', '.join(_RESERVED)}): choose another"
                )
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
        """The relevance of the tokens of a batch.

        By default the explanation is contrastive if the batch has foils, and full embeddings are explained, where the
        method and the model have these choices. `options` are options of the method, kinds of FINER (`heads=True`) and
        SETTINGS. Raises UserError for other names, and UnsupportedMethod for a model that lacks what the method needs
        and for kinds of relevance that the method does not give.
        """
        explanation = explanation or self.usual_explanation(batch.foil_ids is not None)
        request = Request(self.name, explanation, embedding or self.embeddings_of(view.family.capabilities)[0])
        self.check(request)
        finer = {name: True for name in FINER if options.pop(name, False)}
        for name in finer:
            record = FINER[name]
            if name not in self.gives:
                raise UnsupportedMethod(f"{self.name} gives no {record.title}: choose a method that does")
            missing = [need for need in record.needs if need not in view.family.capabilities]
            _require(record.title, missing[:1], view.family)
        settings = {name: options.pop(name) for name in SETTINGS if name in options and name in self._parameters}
        method = self.configured(**options) if options else self
        request = method.bound(request)
        return method.compute(view, batch, [request], **finer, **settings)[request]

    def usual_explanation(self, has_foil: bool) -> str:
        """The name of the default explanation: contrastive with foils, else the target, where the method has these."""
        usual = whichever(has_foil).name
        return usual if usual in self.explanations else self.explanations[0]

    def compute(self, view: ModelView, batch: Batch, requests: Requests, **settings: Any) -> Results:
        """Compute `requests` in one pass of this method's function, with its option values; see :class:`Method`.

        `requests` are those of this method and of others of the same :attr:`group`. `settings` are kinds of FINER
        (`heads=True`) and SETTINGS; those that the function has no parameter for are dropped. Requests with a `label`
        explain this label in place of the batch's targets (`lrp_core.views.repeated`). Other threads wait until the
        model is free (`lrp_core.views.guard`). Raises UnusableRows for rows that cannot be explained, and
        UnsupportedMethod for what the method or the model does not support.
        """
        from closelook.lrp_core.views.guard import guarded
        from closelook.lrp_core.views.repeated import explained_by_label, summed

        self.require(view.family)
        if "tokens" not in self.given:
            raise UnsupportedMethod(
                f"{self.name} gives no relevance of tokens: it is computed from the `ablations` of a run"
            )
        if batch.span_ids is not None and not self.spans:
            raise UnsupportedMethod(
                f"{self.name} explains one token of an answer at a time, no span: leave out the span, or choose a "
                "method that explains spans"
            )
        if POSITIONS not in view.family.capabilities and any(request.embedding == FULL for request in requests):
            lacks = f"{POSITIONS.says}, which {view.family.title} do not have"
            raise UnsupportedMethod(f"{self.name} of the full embedding needs {lacks}: ask for embedding 'partial'")
        known = {name: value for name, value in settings.items() if name in self._parameters and name not in FINER}
        known |= {name: True for name in FINER if settings.get(name, False)}
        if not self.seeded:
            known.pop("seed", None)  # the cell key lacks it, so numbers must not depend on it

        def explain(batch: Batch, requests: Requests, **more: Any) -> Results:
            return guarded(self.function, view, batch, requests, **self._of_pass, **known | more)

        if batch.span_ids is not None and self.spans == "summed":
            if any(name != "layers" and settings.get(name) for name in FINER):
                raise UnsupportedMethod(
                    f"{self.name} explains a span token by token, and then gives relevance of tokens only, "
                    "not of heads or neurons"
                )
            return summed(explain, batch, requests, shared=self.shares_forwards)
        if all(request.label is None for request in requests):
            return explain(batch, requests)
        return explained_by_label(explain, view, batch, requests, shared=self.shares_forwards)

    def bound(self, request: Request) -> Request:
        """A request of this method as `explain` gets it: under the base name, with the per-request option values."""
        options = tuple((option.name, self.values[option.name]) for option in self.options if option.per_request)
        return replace(request, method=self.base, options=options)

    def configured(self, name: str | None = None, **values: Any) -> Method:
        """A copy of this method with other option `values`, under `name` (default: its own).

        Raises UserError for unknown options and for values that are not allowed.
        """
        values = {**self.values, **self._checked(values)}
        if name is None or name == self.name:
            return replace(self, values=values)
        changed = self._changed(values, self.options)
        label = f"{self.label} ({', '.join(changed)})" if changed else name
        return replace(self, name=name, label=label, values=values, column=name, colour=None)

    def key(self) -> list[Any]:
        """The method as part of a cell key: base name, version, and the sorted [option, value] pairs.

        Options that were added after keys were stored (`added_later`) are left out at their default.
        """
        keyed = [o.name for o in self.options if not o.added_later or self.values[o.name] != o.default]
        return [self.base, self.version, sorted([name, self.values[name]] for name in keyed)]

    @property
    def is_ruled(self) -> bool:
        """True for a method of the gradient pass under rules, other than the model's own gradients."""
        return self.rules not in (None, "plain")

    @property
    def shares_forwards(self) -> bool:
        """True if predictions of the same text can share a forward pass: the function has a parameter `texts`."""
        return "texts" in self._parameters

    @property
    def checkpoints(self) -> bool:
        """True if the function can recompute blocks in the backward pass to save memory (parameter `checkpoint`)."""
        return "checkpoint" in self._parameters

    @property
    def group(self) -> tuple[Any, ...]:
        """A value that is equal for methods that one call of `explain` computes together."""
        return self.function, tuple(self._of_pass.items())

    @property
    def pass_name(self) -> str:
        """The name of its pass in measurements, with the option values that are not the default."""
        changed = self._changed(self.values, [option for option in self.options if not option.per_request])
        return f"{self.passes}({','.join(changed)})" if changed else self.passes

    @staticmethod
    def _changed(values: Mapping[str, Any], options: Sequence[Option]) -> list[str]:
        """The `values` that differ from their option's default, as "name=value"."""
        changed = [option for option in options if values[option.name] != option.default]
        return [f"{option.name}={option.shown(values[option.name])}" for option in changed]

    def cost(self, tokens: float, numbers: int = 1) -> float:
        """The cost, in forward passes, of a pass over a sample of that many tokens, without the backwards of `rules`.

        `numbers` is how many explained numbers the pass explains: 2 for the contrast and the target, say.
        """
        once = self.forwards(self.values, tokens) if callable(self.forwards) else self.forwards
        again = self.again(self.values, tokens) if callable(self.again) else self.again
        return once + (numbers - 1) * again

    @property
    def given(self) -> tuple[str, ...]:
        """The kinds of relevance in `gives` that the method gives with its option values."""
        withheld: set[str] = set()
        for option in self.options:
            if option.withholds:
                withheld.update(option.withholds(self.values[option.name]))
        return tuple(name for name in self.gives if name not in withheld)

    def missing(self, capabilities: Collection[Capability]) -> tuple[Capability, ...]:
        """The capabilities that the method, with its option values, needs beyond the model's `capabilities`."""
        needs = list(self.needs)
        for option in self.options:
            value = self.values[option.name]
            if value in option.needs:
                needs.append(option.needs[value])
        return tuple(need for need in needs if need not in capabilities)

    def applies(self, capabilities: Collection[Capability]) -> bool:
        """True if the method gives relevance of tokens and a model with these `capabilities` has what it needs."""
        return "tokens" in self.gives and not self.missing(capabilities)

    def embeddings_of(self, capabilities: Collection[Capability]) -> tuple[str, ...]:
        """The method's choices of embeddings that a model with these `capabilities` supports."""
        return tuple(choice for choice in self.embeddings if choice != FULL or POSITIONS in capabilities)

    def require(self, family: Family) -> None:
        """Raise UnsupportedMethod, naming the method to use instead, if the family lacks what this method needs."""
        missing = self.missing(family.capabilities)
        instead = f": use {self.instead}" if self.instead and all(need.stands_in for need in missing) else ""
        _require(self.name, missing, family, instead)

    def check(self, request: Request) -> None:
        """Raise UnsupportedMethod if this method lacks the request's explanation or embedding."""
        self._choose("explanation", request.explanation, self.explanations)
        self._choose("embedding", request.embedding, self.embeddings)

    def _choose(self, title: str, asked: str, offered: Sequence[str]) -> None:
        """Raise UnsupportedMethod, which calls the choice `title`, unless `asked` is among the `offered` values."""
        if asked not in offered:
            raise UnsupportedMethod(f"{self.name} has no {title} {asked!r}; choose {' or '.join(offered)}")

    @property
    def _of_pass(self) -> dict[str, Any]:
        """The values of the options that hold for a whole call of `explain`, by name."""
        return {option.name: self.values[option.name] for option in self.options if not option.per_request}

    @cached_property
    def function(self) -> Callable[..., Results]:
        """The function `explain`, imported if it is given as "module:function". Raises UserError if that fails."""
        function: Callable[..., Results] = self._imported(self.explain)
        return function

    def of_units(self, ablated: Ablated) -> UnitRelevance:
        """The relevance of units of a prompt from a run's ablations, with the method's option values.

        Raises UserError for ablations that lack what the method needs.
        """
        function: Callable[..., UnitRelevance] = self._imported(self.from_ablations)
        return function(ablated, **self.values)

    def _imported(self, function: Any) -> Any:
        """`function` itself, or the function that "module:function" names. Raises UserError if the import fails."""
        if not isinstance(function, str):
            return function
        try:
            return imported_object(function)
        except (Exception, SystemExit) as error:  # whatever the code of a package raises when it is imported
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(f"method {self.name}: cannot import its function {function!r} ({reason})") from error

    @cached_property
    def _parameters(self) -> frozenset[str]:
        """The names of the parameters of `explain`; none for a method that has only `from_ablations`."""
        if not self.explain:
            return frozenset()
        by_name = (Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
        parameters = signature(self.function).parameters
        return frozenset(name for name, parameter in parameters.items() if parameter.kind in by_name)

    def _checked(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The option `values` converted to their types. Raises UserError for unknown options and values not allowed."""
        options = {option.name: option for option in self.options}
        for name in values:
            if name not in options:
                known = nearest(name, options) if options else "; it has none"
                raise UserError(f"{self.name} has no option {name!r}{known}")
        return {name: options[name].check(value, self.name) for name, value in values.items()}


def _require(title: str, missing: Sequence[Capability], family: Family, instead: str = "") -> None:
    """Raise UnsupportedMethod if any capability that `title` needs is `missing` in models of the family."""
    if missing:
        says = " and ".join(need.says for need in missing)
        raise UnsupportedMethod(f"{title} needs {says}, which {family.title} do not have{instead}")
