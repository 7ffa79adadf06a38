"use strict";
/* The explorer: a filtered list of (sample, model) entries, and the heatmaps of one of them. The address holds the chosen
   entry and the filters, so that it can be sent, and that back and forward work. */
(() => {
  const island = document.getElementById("sample-choices");
  if (!island) return;
  const { draw, element, format } = Heatmap;
  const { fields, ...choices } = JSON.parse(island.textContent);
  const lines = Leaves.open("samples-list"), entries = Leaves.open("samples");
  const LISTED = 100; // entries of the list at once
  const form = document.getElementById("sample-filters"), list = document.getElementById("sample-list");
  const place = document.getElementById("sample"), count = document.getElementById("sample-count"), pager = document.getElementById("sample-pager");
  const named = (line) => Object.fromEntries(fields.map((name, at) => [name, line[at]]));
  const index = lines.first.map(named); // as much of the list as is read
  let shown = []; // numbers of the entries that pass the filters, in order
  let current = null, from = 0, block = null, sought = null;

  const add = (name, values) => values.forEach((value) => form.elements[name].add(new Option(value, value)));
  ["task", "model", "attractors", "explanation"].forEach((name) => add(name, choices[name]));
  add("beside", choices.model);
  form.elements.beside.parentElement.hidden = choices.model.length < 2;

  const percent = (share) => `${Math.round(share)} %`;
  const keep = (entry) => {
    const want = (name) => form.elements[name].value;
    return (!want("task") || entry.task === want("task")) && (!want("model") || entry.model === want("model")) &&
      (!want("correct") || String(entry.correct) === want("correct")) &&
      (!want("attractors") || String(entry.attractors) === want("attractors")) &&
      Math.round(100 * entry.disagreement) >= +want("disagreement");
  };

  /* The address. Field names are those of the form; `sample` and `of` name the entry. */
  const plain = () => new Map([...form.elements].filter((field) => field.name).map((field) => [field.name, field.tagName === "SELECT" ? (field.options[0] || { value: "" }).value : "0"]));
  function address() {
    const state = new URLSearchParams();
    if (current !== null) { state.set("sample", index[current].sample_id); if (index[current].model) state.set("of", index[current].model); }
    for (const [name, value] of plain()) if (form.elements[name].value !== value) state.set(name, form.elements[name].value);
    return `#${state}`;
  }
  function remember(push) {
    const hash = address();
    if (hash === location.hash) return;
    if (push) location.hash = hash; else location.replace(hash);
  }
  function restore() {
    const state = new URLSearchParams(location.hash.slice(1));
    for (const [name, value] of plain()) form.elements[name].value = state.get(name) ?? value;
    sought = state.has("sample") ? { id: state.get("sample"), model: state.get("of") } : null;
    refresh(false);
  }

  function item(number) {
    const entry = index[number];
    const button = element("button", "entry");
    button.type = "button";
    button.dataset.number = number;
    const tags = element("span", "tags");
    tags.append(...[entry.task, entry.model].filter(Boolean).map((name) => element("span", "tag", name)),
      ...(entry.correct == null ? [] : [element("span", entry.correct ? "ok" : "bad", entry.correct ? "correct" : "wrong")]), element("span", "muted", `disagree ${percent(100 * entry.disagreement)}`));
    button.append(element("span", "snippet", entry.text), tags);
    button.addEventListener("click", () => show(number, true));
    const made = element("li");
    made.append(button);
    return made;
  }

  function say() {
    const all = lines.length, until = Math.min(shown.length, from + LISTED), some = shown.length > LISTED;
    const range = some ? `${(from + 1).toLocaleString("en")}–${until.toLocaleString("en")} of ` : "";
    const of = shown.length === all ? "" : ` of ${all.toLocaleString("en")}`;
    count.textContent = `${range}${shown.length.toLocaleString("en")}${of}${index.length < all ? ", reading the list" : ""}`;
    pager.hidden = !some;
    pager.querySelector("[data-by='-1']").disabled = from === 0;
    pager.querySelector("[data-by='1']").disabled = until >= shown.length;
  }
  function paint(start) {
    from = start;
    list.replaceChildren(...shown.slice(from, from + LISTED).map(item));
    mark();
    say();
  }
  /* One entry of the list can be reached by the tab key: the current, or the first. */
  function mark() {
    const within = list.contains(document.activeElement);
    const buttons = [...list.querySelectorAll("button")], active = buttons.find((button) => +button.dataset.number === current);
    buttons.forEach((button) => {
      button.tabIndex = button === (active || buttons[0]) ? 0 : -1;
      button.toggleAttribute("aria-current", button === active);
      button.parentElement.classList.toggle("active", button === active);
    });
    if (active) { if (within) active.focus(); active.parentElement.scrollIntoView({ block: "nearest" }); }
  }

  function heading(entry) {
    const head = element("header"), sentence = element("p", "sentence");
    const before = entry.text.slice(0, entry.slot), after = entry.text.slice(entry.slot);
    sentence.append(before, /\S$/.test(before) ? " " : "", element("mark", entry.correct === false ? "bad" : "ok", entry.target), /^[\p{L}\p{N}]/u.test(after) ? " " : "", after);
    const facts = element("dl", "sample-facts");
    const fact = (name, value) => { if (value == null) return; const both = element("div"); both.append(element("dt", "", name), " ", element("dd", "", String(value))); facts.append(both); };
    fact("task", entry.task); fact("model", entry.model);
    fact("target", entry.target); fact("foil", entry.foil);
    fact("prediction", entry.correct == null ? null : entry.correct ? "correct" : "wrong"); fact("logit difference", entry.margin == null ? null : format(entry.margin));
    fact("attractors", entry.attractors); fact("methods disagree", entry.rows.length > 1 ? percent(100 * entry.disagreement) : null); fact("sample", entry.sample_id);
    if (entry.image) {
      const original = element("img", "original");
      original.src = entry.image.source;
      original.alt = entry.image.alt;
      head.append(original);
    }
    head.append(sentence, facts);
    return head;
  }
  /* Lines of the chosen explanation, or of the first that the entry has where it lacks that one, which is then said. */
  function heatmap(entry) {
    const chosen = form.elements.explanation.value, has = (name) => entry.rows.some((row) => row.explanation === name);
    const first = entry.rows.find((row) => row.explanation !== "none"), shownName = has(chosen) || !first ? chosen : first.explanation;
    const drawn = draw(entry, entry.rows.filter((row) => row.explanation === "none" || row.explanation === shownName));
    if (shownName !== chosen) drawn.prepend(element("p", "notrun", `Shown: ${shownName}. This sample has no explanation of ${chosen}.`));
    return drawn;
  }

  async function show(number, push) {
    current = number;
    if (!list.querySelector(`[data-number="${number}"]`)) paint(Math.floor(shown.indexOf(number) / LISTED) * LISTED); else mark();
    remember(push);
    const { sample_id: id, model } = index[number], beside = form.elements.beside.value;
    const other = beside && beside !== model ? index.findIndex((entry) => entry.sample_id === id && entry.model === beside) : -1;
    try {
      const [entry, second] = await Promise.all([entries.get(number), other < 0 ? null : entries.get(other)]);
      if (current !== number || form.elements.beside.value !== beside) return; // another was chosen meanwhile
      block = heatmap(entry);
      place.replaceChildren(heading(entry), block, ...(second ? [heading(second), heatmap(second)] : []));
    } catch (error) {
      place.replaceChildren(element("p", "notrun", error.message));
    }
  }

  /* What passes the filters, with the sought entry, or the current, or the first of them shown. */
  function refresh(push) {
    form.querySelector("output").textContent = `${form.elements.disagreement.value} %`;
    shown = [...index.keys()].filter((number) => keep(index[number]));
    if (sought) {
      const found = index.findIndex((entry) => entry.sample_id === sought.id && (!sought.model || entry.model === sought.model));
      if (found >= 0) { current = found; sought = null; }
    }
    const next = shown.includes(current) ? current : shown[0];
    paint(Math.floor(Math.max(0, shown.indexOf(next)) / LISTED) * LISTED);
    if (next !== undefined) { if (!sought) show(next, push); return; }
    const reading = index.length < lines.length;
    place.replaceChildren(element("p", "notrun", reading ? "The list is being read." : index.length ? "No sample passes these filters." : "This store holds no relevance to show."));
  }
  async function readList() {
    while (index.length < lines.length) {
      const start = index.length;
      index.push(...(await lines.slice(start, lines.leafEnd(start))).map(named));
      const more = [...index.keys()].slice(start).filter((number) => keep(index[number]));
      const waits = sought || !shown.length, partial = shown.length < from + LISTED;
      shown.push(...more);
      if (waits) refresh(false); else if (partial) paint(from); else say();
    }
    if (sought) { sought = null; refresh(false); } // no such entry
  }

  const step = (by) => shown.length && show(shown[Math.max(0, Math.min(shown.length - 1, shown.indexOf(current) + by))], true);
  const cycle = (select) => { select.selectedIndex = (select.selectedIndex + 1) % select.options.length; show(current, true); };
  const otherModel = () => {
    const same = [...index.keys()].filter((number) => index[number].sample_id === index[current].sample_id);
    const next = same[(same.indexOf(current) + 1) % same.length];
    if (!shown.includes(next)) { form.elements.model.value = ""; current = next; refresh(true); } else show(next, true);
  };
  const keys = { j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1), m: otherModel,
    e: () => cycle(form.elements.explanation), ArrowRight: () => block && block.step(1), ArrowLeft: () => block && block.step(-1) };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (keys[event.key] && current !== null) { event.preventDefault(); keys[event.key](); }
  });
  pager.addEventListener("click", (event) => event.target.dataset.by && paint(from + LISTED * event.target.dataset.by));
  form.addEventListener("input", (event) => refresh(event.target.type !== "range"));
  form.addEventListener("submit", (event) => event.preventDefault());
  addEventListener("hashchange", () => location.hash !== address() && restore());
  restore();
  readList().catch((error) => { count.textContent = error.message; });
})();
