"""Records of installed packages."""

import sys
from dataclasses import replace

import pytest
import torch
from transformers import GPT2Config

from closelook.lrp_core import METHODS, Batch, families, load_model
from closelook.lrp_core.opening.model import view_of
from closelook.lrp_core.records.registry import Registry, load
from closelook.lrp_core.records.types import UnsupportedModel, UserError
from tests import packages
from tests.tiny import IMAGES, picture_rows

CODE = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Thing:
    name: str

ONE = Thing("one")
BOTH = [Thing("two"), Thing("three")]
OTHER = "no thing"

def __getattr__(name):
    raise SystemExit(0) if name == "ENDS" else AttributeError(name)
"""


def install(folder, package, **entries):
    """A package with a module of that name and the entry points `entries` of the group `closelook.things`."""
    packages.install(folder, package, CODE, things=entries)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path; what it brought is forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in ("plug_a", "plug_b"):
        sys.modules.pop(name, None)


def loaded(kind=object):
    table = Registry("thing")
    load("closelook.things", kind, table.register)
    return table


def test_an_entry_point_names_a_record_or_several(site):
    install(site, "plug_a", one="plug_a:ONE", more="plug_a:BOTH")
    import plug_a

    table = loaded(plug_a.Thing)
    assert set(table) == {"one", "two", "three"}
    assert table.owner("two") == "plug-a"


def test_two_packages_with_one_name_are_an_error_that_names_both(site):
    install(site, "plug_a", one="plug_a:ONE")
    install(site, "plug_b", one="plug_b:ONE")
    with pytest.raises(UserError, match="plug-b and plug-a both bring a thing named 'one'"):
        loaded()


@pytest.mark.parametrize("value", ["plug_a:NOTHING", "plug_no_such:ONE", "plug_a:ENDS"])
def test_what_cannot_be_imported_is_one_line_with_the_package(site, value):
    install(site, "plug_a", one=value)
    with pytest.raises(UserError, match=r"plug-a brings .* cannot be imported .*: repair or uninstall it") as error:
        loaded()
    assert "\n" not in str(error.value)


def test_what_is_no_record_is_refused_by_name(site):
    install(site, "plug_a", one="plug_a:OTHER")
    import plug_a

    with pytest.raises(UserError, match=r"plug-a brings 'plug_a:OTHER' .* and no Thing"):
        loaded(plug_a.Thing)


def test_a_table_has_what_packages_bring_from_the_first_look_on(site):
    install(site, "plug_a", one="plug_a:ONE")
    import plug_a

    built_in = plug_a.Thing("own")
    table = Registry("thing", built_in, group="closelook.things", record_class=plug_a.Thing)
    assert list(table) == ["own", "one"]
    assert (table.owner("own"), table.owner("one")) == ("closelook", "plug-a")
    install(site, "plug_b", more="plug_b:BOTH")
    assert list(table) == ["own", "one"], "packages are asked once a process"


def test_a_package_may_bring_a_model_family(site, monkeypatch):
    (site / "plug_family.py").write_text(
        "from dataclasses import replace\n"
        "from closelook.lrp_core.families.gpt2 import GPT2\n"
        "RENAMED = replace(GPT2, name='gpt2-renamed')\n"
    )
    install(site, "plug_a", family="plug_family:RENAMED")
    built_in = families.FAMILIES.values()
    extended = Registry("family", *built_in, group="closelook.things", record_class=families.Family)
    monkeypatch.setattr(families, "FAMILIES", extended)
    config = GPT2Config()
    config.model_type = "gpt2-renamed"
    assert families.family_of(config).kind.name == "causal"
    config.model_type = "gpt2-other"
    with pytest.raises(UnsupportedModel, match=r"no family describes 'gpt2-other' models; supported: .*gpt2-renamed"):
        families.family_of(config)
    sys.modules.pop("plug_family", None)


SKETCH = """
from dataclasses import replace

from transformers import AutoConfig, AutoModelForImageClassification, ViTConfig, ViTForImageClassification

from closelook.lrp_core.families.images import VIT


class SketchConfig(ViTConfig):
    model_type = "sketch"


class SketchForImageClassification(ViTForImageClassification):
    config_class = SketchConfig


AutoConfig.register("sketch", SketchConfig)
AutoModelForImageClassification.register(SketchConfig, SketchForImageClassification)
FAMILY = replace(VIT, name="sketch", classes="plug_sketch")
"""


def test_a_package_may_bring_a_family_of_images(site, monkeypatch):
    packages.install(site, "plug_sketch", SKETCH, things={"family": "plug_sketch:FAMILY"})
    built_in = families.FAMILIES.values()
    extended = Registry("family", *built_in, group="closelook.things", record_class=families.Family)
    monkeypatch.setattr(families, "FAMILIES", extended)
    import plug_sketch

    stock = plug_sketch.SketchForImageClassification(plug_sketch.SketchConfig(**IMAGES["vit"])).eval()
    stock.save_pretrained(site / "model")
    for view in (load_model(site / "model"), view_of(stock)):
        rows = picture_rows(view)
        batch = Batch.collate(rows, 0)
        relevance = METHODS["lrp"](view, batch)
        expected = stock(pixel_values=batch.pixel_values).logits.gather(1, batch.target_ids[:, None])[:, 0]
        torch.testing.assert_close(relevance.logit_target, expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UnsupportedModel, match=r"ViTModel has no .*: give a SketchForImageClassification model"):
        families.family_of(stock.config, "ViTModel")
    sys.modules.pop("plug_sketch", None)


def test_classes_that_cannot_be_imported_are_one_line_with_the_package(monkeypatch):
    table = Registry("family", *families.FAMILIES.values())
    monkeypatch.setattr(families, "FAMILIES", table)
    families.register_model_classes()
    table.register(replace(families.FAMILIES["gpt2"], name="gpt2-renamed", classes="plug_no_such"), by="plug-a")
    message = (
        "^plug-a brings the classes of gpt2-renamed models in plug_no_such, which cannot be imported .*: repair or "
    )
    with pytest.raises(UserError, match=message) as error:
        families.register_model_classes()
    assert "\n" not in str(error.value)
