"""The explorer of thousands of neurons in a real browser, from file://: searched, sorted, linked, and safe."""

import pytest

from closelook.evaluation.report.explorers import neuron_entry as entry
from closelook.evaluation.report.explorers import neuron_explorer, shown
from closelook.evaluation.report.page import Provenance, Site
from tests.browser.driver import wait, write_page
from tests.evaluation.report.test_tables import some_results

pytestmark = pytest.mark.browser
WIDTH, LAYERS = 1_000, 3  # neurons of a layer
PLACES = ("sva · AttnLRP", "sva · LRP")
ATTACK = "<script>document.title = 'broken'</script>"


def entries():
    """Of two models. Relevance by the first place falls with the number, by the second it grows; 1.17 knows most."""
    for model in ("gpt2", "llama"):
        for at in range(LAYERS * WIDTH):
            layer, number = divmod(at, WIDTH)
            ranked = [(0, (WIDTH - number) / 100 + layer, 3), (1, number / 100 - layer, 2)]
            text = shown(["The", " keys", f" {ATTACK}", " are"], 1, 4, relevance=0.5, activation=2.0)
            known = {"samples": [text | {"id": f"s{at}", "task": "sva", "method": "AttnLRP", "linked": True}]}
            if (layer, number) == (1, 17):
                context = shown(
                    ["Two", " dogs", " ran"], 1, 4, values=[0.1, 1.0, -0.2], activation=3.5, where="a.txt:1"
                )
                known |= {"contexts": [context], "corpus": "stories", "explained": "AttnLRP"}
            yield entry(model, layer, number, ranked, **known)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("neurons")
    explorer = neuron_explorer(entries(), PLACES)
    assert len(explorer.entries.files) > 3
    site = Site(Provenance("large", "", {"closelook": "1"}), some_results(), [], [], {"neurons.html": explorer})
    write_page(root, site, "neurons.html")
    return root


@pytest.fixture
def tab(chromium, folder):
    chromium.resize(1440, 1000)
    chromium.open("about:blank")
    chromium.open((folder / "neurons.html").as_uri())
    wait(chromium, "return !/reading/.test(document.getElementById('neuron-count').textContent)")
    yield chromium
    assert chromium.complaints() == []


def named(tab):
    return tab.script("return document.querySelector('#neuron .sentence')?.textContent ?? ''")


def until(tab, name):
    wait(tab, "return document.querySelector('#neuron .sentence')?.textContent === arguments[0]", f"Neuron {name}")


def choose(tab, name, value):
    tab.script(
        "const field = document.getElementById('neuron-filters').elements[arguments[0]];"
        "field.value = arguments[1]; field.dispatchEvent(new Event('input', {bubbles: true}))",
        name,
        value,
    )


def first(tab):
    return tab.script("return document.querySelector('#neuron-list .snippet').textContent")


def test_neurons_are_searched_and_sorted_by_layer_and_relevance_of_every_leaf(tab):
    count = "return document.getElementById('neuron-count').textContent"
    assert tab.script(count) == "1–100 of 3,000"
    assert first(tab) == "2.0", "the most relevant by the first method"
    choose(tab, "order", "against")
    assert first(tab) == "0.999"
    choose(tab, "by", PLACES[1])
    assert first(tab) == "2.0"
    choose(tab, "order", "layer")
    assert first(tab) == "0.0"
    choose(tab, "layer", "1")
    assert (first(tab), tab.script(count)) == ("1.0", "1–100 of 1,000")
    choose(tab, "layer", "")
    choose(tab, "search", "1.17")
    assert tab.script(count) == "11", "1.17 and 1.170 to 1.179"
    until(tab, "1.17")


def test_a_sent_address_opens_its_neuron_with_all_that_is_known_of_it(tab, folder):
    tab.open("about:blank")
    tab.open((folder / "neurons.html").as_uri() + "#neuron=1.17&of=llama&by=sva+%C2%B7+LRP&order=against")
    until(tab, "1.17")
    heads = tab.script("return [...document.querySelectorAll('#neuron h3')].map((head) => head.textContent)")
    assert heads == ["Max-activating examples in stories", "Samples in which it matters"]
    text = tab.script("return document.getElementById('neuron').innerText")
    classes = tab.script("return [...document.querySelectorAll('#neuron .tok')].map((one) => one.className)")[:3]
    signs = [{"pos", "neg", "position"}.intersection(names.split()) for names in classes]
    assert signs == [{"pos"}, {"pos", "position"}, {"neg"}], "tokens of the context have their relevance's colour"
    assert "relevance for the activation under AttnLRP" in text
    for phrase in ("llama", "a.txt:1", "+3.5", "2 samples", ATTACK):
        assert phrase in text
    assert tab.script("return document.title") != "broken"
    assert tab.script("return document.querySelectorAll('#neuron .tok.pos').length") == 2
    assert tab.script("return document.querySelector('#neuron-filters').elements.by.value") == PLACES[1]
    link = tab.script("return document.querySelector('#neuron .line a').getAttribute('href')")
    assert link == "samples.html#sample=s1017&of=llama"
    assert tab.script("return document.querySelectorAll('#neuron .tok.position').length") == 2


def test_keys_walk_the_list_and_back_returns(tab):
    until(tab, "2.0")
    tab.press("j")
    until(tab, "2.1")
    tab.press("j")
    until(tab, "2.2")
    tab.press("k")
    until(tab, "2.1")
    tab.script("history.back()")
    until(tab, "2.2")
    tab.press("s")
    assert tab.script("return document.getElementById('neuron-filters').elements.order.value") == "against"
    tab.press("/")
    assert tab.script("return document.activeElement.name") == "search"


def test_the_page_fits_a_phone_and_is_small(tab, folder):
    tab.resize(390, 844)
    assert tab.script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert (folder / "neurons.html").stat().st_size < 1e6
