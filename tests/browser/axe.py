"""Deque's axe-core in the tab of a test."""

from functools import cache
from importlib.resources import files

from tests.browser.driver import call


@cache
def source():
    """The script, as the package ships it; nothing else of the package is imported."""
    return files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")


def emulate(tab, **media):
    call("POST", f"{tab._url}/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": media})


def violations(tab, *only):
    """Violations that axe finds, and contrasts that it cannot judge, as texts; by all its rules, or by `only` some.

    Axe cannot judge contrast over gradients, as of the shadows of boxes that scroll: they are removed while it runs.
    """
    tab.script("document.querySelectorAll('.scroll').forEach((box) => { box.style.backgroundImage = 'none'; })")
    tab.script(source())
    wrong = tab.script(RUN, list(only))
    tab.script("document.querySelectorAll('.scroll').forEach((box) => { box.style.backgroundImage = ''; })")
    return wrong


#: `target-size` is of WCAG 2.2 and off unless asked for. Arrows are too short a text for axe to judge.
RUN = """
const options = {rules: {'target-size': {enabled: true}}, resultTypes: ['violations', 'incomplete']};
if (arguments[0].length) options.runOnly = arguments[0];
const told = (rule, node) => `${rule.impact} ${rule.id}: ${node.html.slice(0, 120)} (${node.failureSummary})`;
const sure = (node) => ![...node.any].some((check) => ['nonBmp', 'shortTextContent'].includes(check.data?.messageKey));
return axe.run(document, options).then((found) => [
  ...found.violations.flatMap((rule) => rule.nodes.map((node) => told(rule, node))),
  ...found.incomplete.filter((rule) => rule.id === 'color-contrast')
    .flatMap((rule) => rule.nodes.filter(sure).map((node) => `cannot tell: ${told(rule, node)}`))]);
"""
