"use strict";
/* The explorer of answers: pointing at a sentence of an answer, or choosing it by keyboard, shows in the prompt how relevant
   two methods find each source for it. All text goes through textContent: a prompt is never markup. */
(() => {
  const island = document.getElementById("answer-choices");
  if (!island) return;
  const { element, format } = Heatmap;
  const { fields } = JSON.parse(island.textContent);
  const lines = Leaves.open("answers-list"), entries = Leaves.open("answers");
  const form = document.getElementById("answer-filters"), list = document.getElementById("answer-list"), place = document.getElementById("answer");
  const index = [];
  const WHOLE = -1; // of sentences: the answer as a whole
  let current = null, chosen = WHOLE, methods = null; // the labels of the two methods that are shown
  let sentences = null; // the toolbar of the answer that is shown

  const values = (row, sentence) => (sentence === WHOLE ? row.whole : row.parts[sentence]);

  /* The prompt with its sources painted; returns what paints them for another row and sentence. */
  function prompt(entry) {
    const made = element("div", "prompt"), units = [];
    const role = new Map((entry.turns || []).map(([name, start]) => [start, name]));
    const write = (start, end, into) => {
      let from = start;
      for (const at of [...role.keys()].filter((mark) => start <= mark && mark < end).sort((a, b) => a - b)) {
        into.append(entry.prompt.slice(from, at), element("span", "role", role.get(at)));
        from = at;
      }
      into.append(entry.prompt.slice(from, end));
    };
    let at = 0;
    entry.units.forEach(([start, end], number) => {
      const between = element("span", "asks");
      write(at, start, between);
      const unit = element("span", "unit");
      if (entry.evidence && entry.evidence[number]) unit.classList.add("evidence");
      write(start, end, unit);
      units.push(unit);
      made.append(between, unit);
      at = end;
    });
    const rest = element("span", "asks");
    write(at, entry.prompt.length, rest);
    made.append(rest);
    made.paint = (row, sentence) => {
      const own = values(row, sentence), scale = Math.max(...own.map(Math.abs)) || 1;
      const order = own.map((_, unit) => unit).sort((a, b) => own[b] - own[a]);
      units.forEach((unit, number) => {
        const share = own[number] / scale, rank = order.indexOf(number) + 1;
        unit.classList.toggle("pos", share > 0.04);
        unit.classList.toggle("neg", share < -0.04);
        unit.style.setProperty("--share", `${Math.round(Math.abs(share) * 100)}%`);
        unit.title = `source ${number + 1}: ${format(own[number])}, rank ${rank} of ${own.length}${unit.classList.contains("evidence") ? ", known to be one" : ""}`;
        unit.dataset.rank = own[number] > 0 && rank <= 3 ? rank : "";
      });
      return order[0];
    };
    return made;
  }

  /* One of the two columns: a method to choose, its first source in words, and the prompt. */
  function pane(entry, side) {
    const made = element("section", "pane"), label = element("label", "", side ? "and by " : "by "), select = element("select");
    select.name = side ? "second" : "first";
    entry.rows.forEach((row) => select.add(new Option(row.label, row.label)));
    const known = methods && entry.rows.some((row) => row.label === methods[side]);
    select.value = known ? methods[side] : entry.rows[entry.pair[side]].label;
    const first = element("p", "first"), text = prompt(entry);
    first.setAttribute("aria-live", "polite");
    label.append(select);
    made.append(label, first, text);
    made.paint = () => {
      const row = entry.rows[select.selectedIndex], own = values(row, chosen), top = text.paint(row, chosen);
      const [start, end] = entry.units[top], words = entry.prompt.slice(start, end);
      first.textContent = own.some((value) => value > 0) ? `most from source ${top + 1} (${format(own[top])}): ${words.length > 120 ? `${words.slice(0, 119)}…` : words}` : "from no source";
    };
    select.addEventListener("change", () => { methods = [...place.querySelectorAll("select")].map((one) => one.value); made.paint(); remember(); });
    return made;
  }

  /* The answer: a button for each sentence, and for the whole; `step` walks them, pointing shows without choosing. */
  function answer(entry, paint) {
    const made = element("div", "said");
    made.setAttribute("role", "toolbar");
    made.setAttribute("aria-label", "the answer, sentence by sentence");
    const whole = element("button", "part whole-answer", "the whole answer");
    whole.dataset.part = WHOLE;
    const parts = entry.sentences.map(([start, end], number) => {
      const part = element("button", "part", entry.answer.slice(start, end));
      part.dataset.part = number;
      return part;
    });
    const buttons = parts.length > 1 ? [whole, ...parts] : parts;
    if (parts.length <= 1) parts.forEach((part) => { part.dataset.part = WHOLE; });
    let pinned = +buttons[0].dataset.part;
    const show = (part) => {
      chosen = part;
      buttons.forEach((button) => button.classList.toggle("shown", +button.dataset.part === part));
      paint();
    };
    const pin = (part) => {
      pinned = part;
      buttons.forEach((button) => {
        const is = +button.dataset.part === part;
        button.setAttribute("aria-pressed", is);
        button.tabIndex = is ? 0 : -1;
      });
      show(part);
    };
    buttons.forEach((button) => {
      button.type = "button";
      button.addEventListener("pointerenter", () => show(+button.dataset.part));
      button.addEventListener("pointerleave", () => show(pinned));
      button.addEventListener("click", () => pin(+button.dataset.part));
    });
    made.step = (by) => {
      const next = buttons[Math.max(0, Math.min(buttons.length - 1, buttons.findIndex((button) => button.tabIndex === 0) + by))];
      pin(+next.dataset.part);
      next.focus();
    };
    made.append(...buttons);
    made.begin = () => pin(+buttons[0].dataset.part);
    return made;
  }

  function draw(entry) {
    chosen = WHOLE;
    const facts = element("dl", "sample-facts");
    for (const name of ["task", "model", "way", "sample_id"]) {
      if (!entry[name]) continue;
      const fact = element("div");
      fact.append(element("dt", "", name.replace("_id", "")), " ", element("dd", "", entry[name]));
      facts.append(fact);
    }
    const panes = [0, 1].map((side) => pane(entry, side)), said = answer(entry, () => panes.forEach((one) => one.paint()));
    const both = element("div", "two");
    both.append(...panes);
    place.replaceChildren(facts, ...(entry.untrained ? [element("p", "note", "Untrained: the model's weights are random, and it never said this.")] : []), said, both);
    sentences = said;
    said.begin();
  }

  /* The list and the address. */
  const shown = () => [...index.keys()].filter((number) => !form.elements.model.value || index[number].model === form.elements.model.value);
  function item(number) {
    const entry = index[number], button = element("button", "entry"), tags = element("span", "tags"), made = element("li");
    button.type = "button";
    button.dataset.number = number;
    tags.append(...[entry.task, entry.model, entry.way].filter(Boolean).map((name) => element("span", "tag", name)));
    button.append(element("span", "snippet", entry.answer.trim()), tags);
    button.addEventListener("click", () => show(number));
    made.append(button);
    return made;
  }
  function remember() {
    const entry = index[current], state = new URLSearchParams({ sample: entry.sample_id, of: entry.model, way: entry.way });
    if (methods) state.set("by", methods.join("|"));
    history.replaceState(null, "", `#${state}`);
  }
  async function show(number) {
    current = number;
    list.querySelectorAll("button").forEach((button) => {
      const is = +button.dataset.number === number;
      button.tabIndex = is ? 0 : -1;
      button.toggleAttribute("aria-current", is);
      button.parentElement.classList.toggle("active", is);
    });
    remember();
    try {
      const entry = await entries.get(number);
      if (current === number) draw(entry);
    } catch (error) {
      place.replaceChildren(element("p", "notrun", error.message));
    }
  }
  function paint() {
    list.replaceChildren(...shown().map(item));
    if (!shown().includes(current)) current = shown()[0];
    show(current);
  }
  const step = (by) => { const own = shown(); show(own[Math.max(0, Math.min(own.length - 1, own.indexOf(current) + by))]); };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    const by = { j: 1, k: -1 }[event.key], along = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (by && current !== null) { event.preventDefault(); step(by); }
    if (along && sentences && !event.target.closest(".scroll")) { event.preventDefault(); sentences.step(along); }
  });
  list.addEventListener("keydown", (event) => {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    step(by);
    list.querySelector("[aria-current]").focus();
  });
  form.addEventListener("input", paint);
  form.addEventListener("submit", (event) => event.preventDefault());
  async function begin() {
    for (const line of await lines.slice(0, lines.length)) index.push(Object.fromEntries(fields.map((name, at) => [name, line[at]])));
    const models = [...new Set(index.map((entry) => entry.model))];
    models.forEach((name) => form.elements.model.add(new Option(name, name)));
    form.hidden = models.length < 2;
    const state = new URLSearchParams(location.hash.slice(1)), by = (state.get("by") || "").split("|");
    if (by.length === 2) methods = by;
    const found = index.findIndex((entry) => entry.sample_id === state.get("sample") && entry.model === (state.get("of") ?? entry.model) && entry.way === (state.get("way") ?? entry.way));
    current = found < 0 ? 0 : found;
    paint();
  }
  begin().catch((error) => place.replaceChildren(element("p", "notrun", error.message)));
})();
