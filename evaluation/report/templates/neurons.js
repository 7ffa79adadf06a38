"use strict";
/* The explorer of neurons: a list that is searched and sorted, and one of them in full. The address holds the chosen neuron
   and the filters. All text goes through textContent. */
(() => {
  const island = document.getElementById("neuron-choices");
  if (!island) return;
  const { element, format, token } = Heatmap;
  const { fields, places, models } = JSON.parse(island.textContent);
  const lines = Leaves.open("neurons-list"), entries = Leaves.open("neurons");
  const LISTED = 100; // neurons of the list at once
  const form = document.getElementById("neuron-filters"), list = document.getElementById("neuron-list");
  const place = document.getElementById("neuron"), count = document.getElementById("neuron-count"), pager = document.getElementById("neuron-pager");
  const named = (line) => Object.fromEntries(fields.map((name, at) => [name, line[at]]));
  const index = lines.first.map(named); // as much of the list as is read
  const field = (name) => form.elements[name];
  let shown = [], current = null, from = 0, sought = null;

  Object.keys(models).forEach((name) => field("model").add(new Option(name, name)));
  field("model").parentElement.hidden = Object.keys(models).length < 2;
  const title = (one) => one.name;
  const ranked = (one, by) => one.ranked.find(([at]) => places[at] === by);
  const relevance = (one) => (ranked(one, field("by").value) || [0, 0])[1];
  const plus = (value) => (value > 0 ? "+" : "") + format(value);

  /* Fills the filters with the choices of a model: the tasks and methods that rank its neurons, and its layers. */
  function offer() {
    const model = field("model").value, before = { by: field("by").value, layer: field("layer").value };
    const known = new Set(index.filter((one) => one.model === model).flatMap((one) => one.ranked.map(([at]) => at)));
    field("by").replaceChildren(...places.filter((_, at) => known.has(at)).map((name) => new Option(name, name)));
    field("layer").replaceChildren(new Option("all", ""), ...models[model].map((layer) => new Option(layer, layer)));
    for (const [name, value] of Object.entries(before)) if ([...field(name).options].some((option) => option.value === value)) field(name).value = value;
  }
  const keep = (one) => {
    const name = field("search").value.trim(), layer = field("layer").value;
    return one.model === field("model").value && (!layer || one.layer === +layer) &&
      title(one).startsWith(name);
  };
  const orders = {
    relevance: (a, b) => relevance(index[b]) - relevance(index[a]), against: (a, b) => relevance(index[a]) - relevance(index[b]),
    layer: (a, b) => index[a].layer - index[b].layer || index[a].neuron - index[b].neuron,
  };

  function address() {
    const state = new URLSearchParams();
    if (current !== null) { state.set("neuron", title(index[current])); state.set("of", index[current].model); }
    for (const name of ["by", "layer", "order", "search"]) if (field(name).value && field(name).value !== (field(name).options || [{ value: "" }])[0].value) state.set(name, field(name).value);
    return `#${state}`;
  }
  function restore() {
    const state = new URLSearchParams(location.hash.slice(1));
    if (state.has("of") && models[state.get("of")]) field("model").value = state.get("of");
    offer();
    for (const name of ["by", "layer", "order", "search"]) {
      const first = (field(name).options || [{ value: "" }])[0];
      field(name).value = state.get(name) ?? (first ? first.value : "");
      if (field(name).options && field(name).selectedIndex < 0) field(name).selectedIndex = 0;
    }
    sought = state.get("neuron");
    refresh(false);
  }
  function remember(push) {
    const hash = address();
    if (hash === location.hash) return;
    if (push) location.hash = hash; else location.replace(hash);
  }

  function item(number) {
    const one = index[number], button = element("button", "entry"), tags = element("span", "tags"), made = element("li");
    button.type = "button";
    button.dataset.number = number;
    tags.append(element("span", "tag", `layer ${one.layer}`), element("span", "muted", plus(relevance(one))));
    button.append(element("span", "snippet", title(one)), tags);
    button.addEventListener("click", () => show(number, true));
    made.append(button);
    return made;
  }
  function paint(start) {
    from = start;
    list.replaceChildren(...shown.slice(from, from + LISTED).map(item));
    const until = Math.min(shown.length, from + LISTED), some = shown.length > LISTED;
    count.textContent = `${some ? `${from + 1}–${until} of ` : ""}${shown.length.toLocaleString("en")}${index.length < lines.length ? ", reading the list" : ""}`;
    pager.hidden = !some;
    pager.querySelector("[data-by='-1']").disabled = from === 0;
    pager.querySelector("[data-by='1']").disabled = until >= shown.length;
    mark();
  }
  function mark() {
    const within = list.contains(document.activeElement), buttons = [...list.querySelectorAll("button")];
    const active = buttons.find((button) => +button.dataset.number === current);
    buttons.forEach((button) => {
      button.tabIndex = button === (active || buttons[0]) ? 0 : -1;
      button.toggleAttribute("aria-current", button === active);
      button.parentElement.classList.toggle("active", button === active);
    });
    if (active) { if (within) active.focus(); active.parentElement.scrollIntoView({ block: "nearest" }); }
  }

  /* A text on a line, with the position at which the neuron is active, and the relevance of its tokens if it is known. */
  function strip(one, head, below) {
    const line = element("div", "line"), words = element("div", "method"), tokens = element("div", "tokens");
    const values = one.values || one.tokens.map(() => 0), scale = Math.max(...values.map(Math.abs)) || 1;
    const drawn = { tokens: one.tokens, evidence: [], special: [], position: one.position };
    words.append(element("strong", "", head), ...(below ? [below] : []));
    one.tokens.forEach((_, at) => tokens.append(token(drawn, { values, scale }, at)));
    line.append(words, tokens);
    return line;
  }
  const part = (name, ...children) => {
    const made = element("section", "neuron-part");
    made.append(element("h3", "", name), ...children);
    return made;
  };
  function facts(rows) {
    const made = element("dl", "sample-facts");
    rows.forEach(([name, value]) => { const both = element("div"); both.append(element("dt", "", name), " ", element("dd", "", value)); made.append(both); });
    return made;
  }
  function source(sample) {
    const link = element("a", "", `${sample.task}, ${sample.method}`);
    link.href = `samples.html#${new URLSearchParams({ sample: sample.id, of: sample.model })}`;
    return sample.linked ? link : element("span", "muted", `${sample.task}, ${sample.method}`);
  }
  const samples = (number) => `${number} sample${number === 1 ? "" : "s"}`;

  function draw(one) {
    const head = element("header");
    head.append(element("p", "sentence", `Neuron ${title(one)}`), facts([["model", one.model], ...one.ranked.map(([at, mean, kept]) => [places[at], `${plus(mean)} (kept in ${samples(kept)})`])]));
    const parts = [head];
    const texts = one.contexts.map((each) => strip(each, plus(each.activation), element("span", "muted", each.where)));
    const why = one.explained ? [element("p", "muted", `Tokens by their relevance for the activation under ${one.explained}.`)] : [];
    if (texts.length) parts.push(part(`Max-activating examples in ${one.corpus}`, ...why, ...texts));
    parts.push(part("Samples in which it matters", ...one.samples.map((each) => strip(each, `${plus(each.relevance)}, active ${plus(each.activation)}`, source({ ...each, model: one.model })))));
    return parts;
  }

  async function show(number, push) {
    current = number;
    if (!list.querySelector(`[data-number="${number}"]`)) paint(Math.floor(shown.indexOf(number) / LISTED) * LISTED); else mark();
    remember(push);
    try {
      const one = await entries.get(number);
      if (current === number) place.replaceChildren(...draw(one)); // else another was chosen meanwhile
    } catch (error) {
      place.replaceChildren(element("p", "notrun", error.message));
    }
  }
  function refresh(push) {
    shown = [...index.keys()].filter((number) => keep(index[number])).sort(orders[field("order").value]);
    const found = sought === null ? -1 : shown.find((number) => title(index[number]) === sought) ?? -1;
    if (found >= 0) { current = found; sought = null; }
    const next = shown.includes(current) ? current : shown[0];
    paint(Math.floor(Math.max(0, shown.indexOf(next)) / LISTED) * LISTED);
    if (next === undefined) { current = null; place.replaceChildren(element("p", "notrun", index.length < lines.length ? "The list is being read." : "No neuron passes these filters.")); return; }
    if (sought === null) show(next, push);
  }
  async function readList() {
    while (index.length < lines.length) {
      const start = index.length;
      index.push(...(await lines.slice(start, lines.leafEnd(start))).map(named));
      const by = field("by").value;
      offer();
      if (by) field("by").value = by;
      if (sought !== null || current === null) restore(); else refresh(false);
    }
    if (sought !== null) { sought = null; refresh(false); } // no such neuron
  }

  const step = (by) => shown.length && show(shown[Math.max(0, Math.min(shown.length - 1, shown.indexOf(current) + by))], true);
  const other = () => { field("order").selectedIndex = (field("order").selectedIndex + 1) % field("order").options.length; current = null; refresh(true); };
  const keys = { j: () => step(1), k: () => step(-1), s: other, "/": () => field("search").focus() };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
  pager.addEventListener("click", (event) => event.target.dataset.by && paint(from + LISTED * event.target.dataset.by));
  form.addEventListener("input", (event) => {
    if (event.target.name === "model") offer();
    current = null; // the first of what is asked for now
    refresh(event.target.type !== "search");
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => location.hash !== address() && restore());
  restore();
  readList().catch((error) => { count.textContent = error.message; });
})();
