"""Just enough WebDriver over plain HTTP to drive Chromium through chromedriver."""

import base64
import json
import re
import subprocess
import time
import urllib.request
from contextlib import contextmanager

_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"]
_ARGUMENTS += ["--disable-background-networking", "--no-first-run", "--force-device-scale-factor=1"]
LIMIT_S = 600
#: Keys of WebDriver's own alphabet.
KEYS = {"ArrowRight": "\ue014", "ArrowLeft": "\ue012"}
WIDTHS = {"desk": (1440, 1000), "phone": (390, 844)}
#: A text of samples that would change the page if the page took it for markup.
ATTACK = "The <script>document.title = 'broken'</script> keys <b>are</b>"


class Browser:
    """One tab. Scripts are bodies of functions and return JSON."""

    def __init__(self, url, session):
        self._url = f"{url}/session/{session}"

    def open(self, url):
        call("POST", f"{self._url}/url", {"url": url})

    def script(self, body, *arguments):
        return call("POST", f"{self._url}/execute/sync", {"script": body, "args": list(arguments)})

    def press(self, key):
        steps = [{"type": kind, "value": KEYS.get(key, key)} for kind in ("keyDown", "keyUp")]
        call("POST", f"{self._url}/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": steps}]})

    def hover(self, selector):
        """The mouse over the middle of the first element of `selector`."""
        x, y = self.script(
            "const box = document.querySelector(arguments[0]);"
            "box.scrollIntoView({block: 'center', behavior: 'instant'});"
            "const at = box.getBoundingClientRect(); return [at.x + at.width / 2, at.y + at.height / 2]",
            selector,
        )
        steps = [{"type": "pointerMove", "duration": 0, "x": round(x), "y": round(y)}]
        call("POST", f"{self._url}/actions", {"actions": [{"type": "pointer", "id": "mouse", "actions": steps}]})

    def resize(self, width, height):
        """The size of the page itself, smaller than a window can be."""
        parameters = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        body = {"cmd": "Emulation.setDeviceMetricsOverride", "params": parameters}
        call("POST", f"{self._url}/goog/cdp/execute", body)

    def screenshot(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(call("GET", f"{self._url}/screenshot")))

    def complaints(self):
        """Errors of the page: scripts that failed, requests that were refused."""
        lines = call("POST", f"{self._url}/se/log", {"type": "browser"})
        return [line["message"] for line in lines if line["level"] == "SEVERE"]


def wait(tab, condition, *arguments):
    """Until the condition, a body of a function, holds."""
    end = time.monotonic() + LIMIT_S
    while not tab.script(condition, *arguments):
        assert time.monotonic() < end, condition
        time.sleep(0.05)


def write_page(root, site, name):
    """One page of a site with its leaves, as the report writes them."""
    values = {"parts": [part for part in site.parts if part.page == name], "published": False}
    (root / name).write_text(site._page(name, [name], values), encoding="utf-8")
    for leaf in site.explorers[name].leaves if name in site.explorers else ():
        (root / leaf.name).mkdir()
        for name, text in leaf.files.items():
            (root / name).write_text(text, encoding="utf-8")


@contextmanager
def browser(chromium, chromedriver):
    """A headless Chromium that ends with the block. Takes the paths of both programs."""
    with subprocess.Popen([chromedriver, "--port=0"], stdout=subprocess.PIPE, text=True) as driver:
        try:
            port = next(match[1] for line in driver.stdout if (match := re.search(r"successfully on port (\d+)", line)))
            url = f"http://127.0.0.1:{port}"
            options = {"binary": chromium, "args": _ARGUMENTS}
            capabilities = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            capabilities["timeouts"] = {"script": 1000 * LIMIT_S, "pageLoad": 1000 * LIMIT_S}
            session = call("POST", f"{url}/session", {"capabilities": {"alwaysMatch": capabilities}})["sessionId"]
            try:
                yield Browser(url, session)
            finally:
                call("DELETE", f"{url}/session/{session}")
        finally:
            driver.kill()  # its Chromium has ended with the session


def call(method, url, body=None):
    data = None if method == "GET" else json.dumps(body or {}).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=LIMIT_S) as answer:
        return json.load(answer)["value"]
