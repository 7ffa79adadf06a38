"""Run configurations: what is shipped parses, what is wrong is named in one line."""

from pathlib import Path

import pytest

from closelook.jobs.config import RunConfig
from closelook.jobs.config.file import CONF_DIR, ConfigError
from closelook.jobs.config.methods import configured
from closelook.jobs.geometries import geometry_of


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF_DIR.glob("*.yaml")))
def test_every_shipped_config_parses(name, tmp_path):
    (tmp_path / "sva").mkdir()
    assert RunConfig.load(name, overrides=[f"data={tmp_path}"]).name == name


@pytest.mark.parametrize(
    ("source", "overrides", "message"),
    [
        ("demoo", [], "no config 'demoo' (did you mean 'demo'?): give a path or one of attnlrp, demo, "),
        (
            "smok",
            [],
            "no config 'smok' (did you mean 'smoke'?): give a path or one of attnlrp, demo, normxlogit, own, paper",
        ),
        ("smoke", ["tokn_budget=3"], "unknown config key 'tokn_budget' (did you mean 'token_budget'?)"),
        ("smoke", ["ray.adress=x"], "unknown config key 'ray.adress' (did you mean 'address'?)"),
        ("smoke", ["models.gpt2.gpu=3"], "unknown config key 'models.gpt2.gpu' (did you mean 'gpus'?)"),
        ("smoke", ["models.gpt.gpus=3"], "no entry of that list is named 'gpt' (did you"),
        ("smoke", ["prune.stp=2"], "unknown config key 'prune.stp' (did you mean 'step'?)"),
        (
            "smoke",
            ["tasks.foo.source=demo"],
            "the source 'demo' feeds the tasks ra, sva, qa, next_word, sentiment, similarity, brackets, triggers, "
            "shapes, sources, not 'foo'",
        ),
        ("smoke", ["prune={step: 1, step: 2}"], "--set prune={step: 1, step: 2}: the key 'step' occurs twice"),
        ("smoke", ["methods"], "--set methods: expected key=value"),
        ("smoke", ["seed=[1"], "--set seed=[1: the value is not YAML"),
        ("smoke", ["methods=[]"], "config key 'methods': expected at least one entry, not []"),
        ("smoke", ["models.gpt2.dtypes={sva: []}"], "models.gpt2.dtypes.sva': expected at least one entry, not []"),
        ("demo", ["prune.orders=[]"], "config key 'prune.orders': expected at least one entry, not []"),
        ("smoke", ["seed=-1"], "config key 'seed': Input should be greater than or equal to 0"),
        ("smoke", ["tasks.sva.limit=many"], "config key 'tasks.sva.limit': expected a whole number, not 'many'"),
        ("paper", ["models.Llama-3.2-1B.gpus=1.5"], "config key 'models.Llama-3.2-1B': gpus must be a fraction"),
        ("smoke", ["models.gpt2.workers=[2, 1]"], "workers must be [fewest, most]"),
        ("smoke", ["models.gpt2.tasks=[svb]"], "no task 'svb' (did you mean 'sva'?)"),
        (
            "demo",
            ["prune.methods=[]"],
            "config key 'prune': `methods` is empty: leave it out to take all, or leave out the block that it is in",
        ),
        (
            "demo",
            ["prune.models=[gtp2]"],
            "config key 'prune.models': no model 'gtp2' in this run (did you mean 'gpt2'?)",
        ),
        ("demo", ["heads=null"], "config key 'prune': heads are removed by their relevance: name tasks of it"),
        ("demo", ["prune.tasks=[sentiment]"], "config key 'prune': heads are removed by their relevance: name tasks"),
        ("smoke", ["tasks={}"], "config key 'tasks': a run needs at least one task: add one, as in `tasks: {sva: "),
        ("demo", ["prune.methods=[attnlpr]"], "config key 'prune.methods': no method 'attnlpr' in this run"),
        ("demo", ["prune.tasks=[svb]"], "prune.tasks: no task 'svb' (did you mean 'sva'?)"),
        (
            "demo",
            ["neurons.knockout.models=[gtp2]"],
            "neurons.knockout.models': no model 'gtp2' in this run",
        ),
        (
            "demo",
            ["neurons.knockout.methods=[lrpp]"],
            "neurons.knockout.methods': no method 'lrpp' in this run",
        ),
        ("smoke", ["tasks.sva.source=squat"], "'tasks.sva.source': unknown source 'squat' (did you mean 'squad'?)"),
        (
            "smoke",
            ["tasks.foo.source=demo"],
            "'tasks.foo.source': the source 'demo' feeds the tasks ra, sva, qa, ",
        ),
        (
            "smoke",
            ["tasks.foo={source: samples}"],
            "'tasks.foo.path': set it to the file of the user's own samples",
        ),
        (
            "smoke",
            ["tasks.sva.tokens=9"],
            "config key 'tasks.sva': the task's texts have a slot: leave out `tokens` and `explains`",
        ),
        (
            "smoke",
            ["tasks.next_word.source=demo", "explanations=[contrastive]"],
            "config key 'tasks.next_word': the task has no foils to contrast with: add 'target' to `explanations`",
        ),
        ("smoke", ["methods=[lrp, lrp]"], "two methods are named 'lrp': give each a name"),
        ("smoke", ["methods=[lrp: {a: 1}, {name: lrp, method: attnlrp}]"], "two methods are named 'lrp'"),
        ("smoke", ["methods=[lrp]", "models.gpt2.methods=[lrp: {a: 1}]"], "two different methods are named 'lrp'"),
        ("smoke", ["methods=[{lrp: 3}]"], "a method is NAME, {NAME: {option: value}} or {name: ..., method: NAME, "),
        ("smoke", ["methods=[{lrp: {a: 1}, attnlrp: {}}]"], "a method is NAME, {NAME: {option: value}} or {name: "),
        (
            "smoke",
            ["methods=[{name: ../up, method: lrp}]"],
            "config key 'methods.../up.name': the name '../up' may contain only",
        ),
        ("real", [], "add --set data=DIR, a folder with any of ra, sva, */*_agreement*.jsonl, qa, wikitext, sst2/dev."),
        ("real", ["data=/none"], "no task data in /none: there is none of ra, sva, */*_agreement*.jsonl, qa, wikitext"),
    ],
)
def test_a_config_error_is_one_line_that_names_the_key(source, overrides, message):
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(source, overrides=overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_benchmark_measures_the_first_task_where_none_is_named():
    config = RunConfig.load("demo", overrides=["bench={samples: 3}"])
    assert config.bench.task == config.benchmark().task == "ra"
    assert RunConfig.load("demo").bench.task == "sva"
    assert RunConfig.load("smoke").benchmark().task == "sva"


@pytest.mark.parametrize("text", ["a: [1", "just words", "!!python/object/apply:os.getcwd []"])
def test_a_file_that_is_no_plain_yaml_mapping_is_refused(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError):
        RunConfig.load(path)


BOMB = "\n".join(f"a{n + 1}: &a{n + 1} [{', '.join([f'*a{n}'] * 9)}]" for n in range(9))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f"a0: &a0 [x]\n{BOMB}", "its aliases (*name) unfold into more than 10,000 values: use fewer"),
        ("name: a\nmodels: &a [*a]", "the alias in line 2 refers to a value that contains it"),
        ("name: a\nseed: 1\nroot: b\nseed: 2", "the key 'seed' occurs twice, again in line 4"),
        ("models:\n- {name: a,\n   id: b, name: c}", "the key 'name' occurs twice, again in line 3"),
        ("a: " + "[" * 1500, "it is nested too deeply"),
    ],
)
def test_yaml_that_is_not_what_it_seems_is_refused_at_once_in_one_line(tmp_path, text, message):
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        RunConfig.load(path)
    assert str(caught.value) == f"{path} is not readable YAML: {message}"


def test_a_section_may_be_repeated_by_alias(tmp_path):
    path = tmp_path / "run.yaml"
    entry = "- {{name: m{}, id: demo/gpt2, tasks: *tasks, labels: {{<<: *labels, a: b}}}}\n"
    base = "name: a\nroot: r\nmethods: [lrp]\ntasks: {sva: {source: demo}}\n"
    first = "- {name: m, id: demo/gpt2, tasks: &tasks [sva], labels: &labels {c: d}}\n"
    path.write_text(f"{base}models:\n{first}" + "".join(map(entry.format, range(50))))
    model = RunConfig.load(path).model("m49")
    assert (model.tasks, model.labels) == (("sva",), {"a": "b", "c": "d"})


@pytest.mark.parametrize("name", ["../up", "/etc", "a/b", "..", ""])
def test_names_that_could_lead_out_of_the_root_are_refused(name):
    with pytest.raises(ConfigError):
        RunConfig.load("smoke", overrides=[f"models.gpt2.name={name!r}"])


def test_credentials_in_the_root_are_refused():
    with pytest.raises(ConfigError, match="contains credentials"):
        RunConfig.load("smoke", root="s3://key:secret@bucket/run")


def test_overrides_reach_models_whose_names_hold_dots():
    config = RunConfig.load(
        "paper", overrides=["models.Llama-3.2-1B.gpus=2", "models.Llama-3.2-1B.max_memory={0: 1GiB}"]
    )
    assert config.model("Llama-3.2-1B").gpus == 2


def test_placeholders_are_filled_and_candidates_without_a_value_dropped(tmp_path):
    (tmp_path / "sva").mkdir()
    config = RunConfig.load("real", overrides=[f"data={tmp_path}"])
    assert config.tasks["sva"].path == f"{tmp_path}/sva"
    assert list(config.tasks) == ["sva", "sva_few"], "tasks without data are left out"
    without_assets = RunConfig.load("real", overrides=[f"data={tmp_path}", "assets=null"])
    assert without_assets.tasks["sva"].spacy[0] == "en_core_web_trf"
    folders = {"ra": "ra", "blimp5": "*/*_agreement*.jsonl", "qa": "qa", "sources": "qa", "next_word": "wikitext"}
    folders |= {"sst2": "sst2/dev.tsv", "geco": "geco/binary_gender_all.test.jsonl"}
    gone = [f"tasks.{name}: {tmp_path}/{folder} is not there" for name, folder in folders.items()]
    assert list(config.left_out) == gone
    assert "tasks.sva.spacy: {assets}/en_ud_ewt_sm, since 'assets' is not set" in without_assets.left_out
    assert RunConfig.load("demo").left_out == ()


def test_paper_holds_the_models_and_precisions_of_close_look():
    config = RunConfig.load("paper")
    assert len(config.models) == 9
    for model in config.models:
        precisions = {task: model.dtypes_for(task) for task in config.tasks}
        default = "bfloat16" if model.name.startswith("Llama") else "float32"
        assert default in precisions["qa"]
        doubled = model.name not in ("Llama-3.2-3B", "Llama-3.1-8B")
        assert all(("float64" in precisions[task]) == doubled for task in ("ra", "sva"))
    both = {model.name for model in config.models if len(model.dtypes_for("qa")) == 2}
    assert both == {"bert-large-uncased", "gpt2-xl", "Llama-3.2-1B"}


def test_attnlrp_holds_the_methods_and_options_of_its_tables_1_and_5_to_8():
    config = RunConfig.load("attnlrp")
    everything = configured(config)
    methods, of_answers, of_images, of_reviews = (
        {entry.name: everything[entry.name] for entry in config.methods_of(model)} for model in config.models
    )
    assert len(methods) == 10
    for others, options in (
        (of_answers, {"smoothgrad": ("sigma", 0.1), "atman_qa": ("suppression", 0.9)}),
        (of_reviews, {"smoothgrad_imdb": ("sigma", 0.05), "atman_imdb": ("suppression", 0.7)}),
    ):
        assert {method.base for method in others.values()} == set(methods)
        assert all(others[name].values[option] == value for name, (option, value) in options.items())
    assert (config.tasks["imdb"].limit, config.perturb.measures) == (4000, ("areas",))
    assert {method.base or name for name, method in of_images.items()} == set(methods)
    table_5 = {
        "smoothgrad_vit": ("sigma", 0.01),
        "atman_vit": ("similarity", 0.1),
        "attention_rollout_vit": ("discard_threshold", 0.99),
        "grad_attention_rollout_vit": ("discard_threshold", 0.91),
    }
    assert all(of_images[name].values[option] == value for name, (option, value) in table_5.items())
    assert (config.tasks["images"].limit, config.perturb.pixels) == (3200, True)
    tuned = {"smoothgrad": ("sigma", 0.1), "atman": ("suppression", 1.0), "integrated_gradients": ("steps", 50)}
    assert all(methods[name].values[option] == value for name, (option, value) in tuned.items())
    assert all(
        methods[name].values["discard_threshold"] == 1 for name in ("attention_rollout", "grad_attention_rollout")
    )
    assert config.tasks["next_word"].limit == 4000
    assert config.task("next_word").beginning.tokens == 512
    llama, known = config.models[0], geometry_of(config.models[0].id)
    assert llama.dtypes_for("next_word") == ("bfloat16",)
    assert known is not None
    assert known.parameters / 1e9 == pytest.approx(6.74, rel=0.01)
    flan, shape = config.models[1], geometry_of(config.models[1].id)
    assert (flan.tasks, config.tasks["qa"].limit) == (("qa",), 4000)
    assert shape is not None
    assert shape.parameters / 1e9 == pytest.approx(2.85, rel=0.02)
    assert not any(method.missing(shape.model_family.capabilities) for method in methods.values())
    assert not any(method.missing(known.model_family.capabilities) for method in methods.values())


def test_a_config_is_frozen_and_survives_its_record():
    config = RunConfig.load("demo")
    assert RunConfig.model_validate(config.model_dump(mode="json")) == config
    with pytest.raises(ValueError, match="frozen"):
        config.seed = 1


def test_a_value_that_a_list_repeats_counts_once():
    repeats = ("perturb.ways=[zero, delete, zero]", "models.gpt2.dtypes={sva: [float32, float32]}")
    config = RunConfig.load("demo", overrides=[*repeats, "neurons.knockout.counts=[5, 1, 5]"])
    assert config.perturb.ways == ("zero", "delete")
    assert config.model("gpt2").dtypes_for("sva") == ("float32",)
    assert config.neurons.knockout.counts == (5, 1)


def test_a_config_may_be_a_path(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(Path(CONF_DIR / "smoke.yaml").read_text())
    assert RunConfig.load(path, root="elsewhere").root == "elsewhere"
