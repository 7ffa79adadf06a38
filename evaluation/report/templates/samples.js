"use strict";
/* The explorer: a filtered list of (sample, model) entries and the heatmaps of one of them. */
(() => {
  const island = document.getElementById("sample-data");
  if (!island) return;
  const { draw, element } = Heatmap;
  const entries = JSON.parse(island.textContent);
  const form = document.getElementById("sample-filters"), list = document.getElementById("sample-list");
  const place = document.getElementById("sample"), count = document.getElementById("sample-count");
  const unique = (values) => [...new Set(values)].filter((value) => value !== "" && value != null);
  let shown = [], current = null, block = null;

  const addOptions = (name, values) => values.forEach((value) => form.elements[name].add(new Option(value, value)));
  addOptions("task", unique(entries.map((entry) => entry.task)));
  addOptions("model", unique(entries.map((entry) => entry.model)));
  addOptions("attractors", unique(entries.map((entry) => entry.attractors)).sort());
  addOptions("explanation", unique(entries.flatMap((entry) => entry.rows.map((row) => row.explanation))).filter((name) => name !== "none"));

  const keep = (entry) => {
    const want = (name) => form.elements[name].value;
    return (!want("task") || entry.task === want("task")) && (!want("model") || entry.model === want("model")) &&
      (!want("correct") || String(+entry.correct) === want("correct")) &&
      (!want("attractors") || String(entry.attractors) === want("attractors")) &&
      100 * entry.disagreement >= +want("disagreement");
  };
  const key = (entry) => `${entry.sample_id}/${entry.model}`;
  const percent = (share) => `${Math.round(100 * share)} %`;

  function item(entry) {
    const button = element("button", "entry");
    button.type = "button";
    const tags = element("span", "tags");
    tags.append(...[entry.task, entry.model].filter(Boolean).map((name) => element("span", "tag", name)),
      ...(entry.correct == null ? [] : [element("span", entry.correct ? "ok" : "bad", entry.correct ? "correct" : "wrong")]), element("span", "muted", `disagree ${percent(entry.disagreement)}`));
    button.append(element("span", "snippet", entry.text), tags);
    button.addEventListener("click", () => show(entry));
    const made = element("li");
    made.append(button);
    return made;
  }

  function show(entry) {
    current = entry;
    location.replace(`#${encodeURIComponent(key(entry))}`);
    list.querySelectorAll("li").forEach((made, at) => {
      const active = shown[at] === entry;
      made.classList.toggle("active", active);
      if (active) made.scrollIntoView({ block: "nearest" });
    });
    const head = element("header");
    const sentence = element("p", "sentence");
    const before = entry.text.slice(0, entry.slot), after = entry.text.slice(entry.slot);
    sentence.append(before, /\S$/.test(before) ? " " : "", element("mark", entry.correct === false ? "bad" : "ok", entry.target), /^[\p{L}\p{N}]/u.test(after) ? " " : "", after);
    const facts = element("dl", "sample-facts");
    const pair = (name, value) => { const both = element("div"); both.append(element("dt", "", name), " ", element("dd", "", value)); facts.append(both); };
    const fact = (name, value) => value != null && pair(name, String(value));
    fact("task", entry.task); fact("model", entry.model);
    fact("target", entry.target); fact("foil", entry.foil);
    fact("prediction", entry.correct == null ? null : entry.correct ? "correct" : "wrong"); fact("logit difference", entry.margin == null ? null : Heatmap.format(entry.margin));
    fact("attractors", entry.attractors); fact("methods disagree", entry.rows.length > 1 ? percent(entry.disagreement) : null); fact("sample", entry.sample_id);
    head.append(sentence, facts);
    const wanted = form.elements.explanation.value;
    block = draw(entry, entry.rows.filter((row) => row.explanation === "none" || row.explanation === wanted));
    place.replaceChildren(head, block);
  }

  function refresh() {
    form.querySelector("output").textContent = `${form.elements.disagreement.value} %`;
    shown = entries.filter(keep);
    list.replaceChildren(...shown.map(item));
    count.textContent = `${shown.length} of ${entries.length}`;
    if (!shown.length) place.replaceChildren(element("p", "notrun", entries.length ? "No sample passes these filters." : "This store holds no relevance to show."));
    else show(shown.includes(current) ? current : shown[0]);
  }
  const step = (by) => shown.length && show(shown[Math.max(0, Math.min(shown.length - 1, shown.indexOf(current) + by))]);
  const cycle = (select) => { select.selectedIndex = (select.selectedIndex + 1) % select.options.length; show(current); };
  const otherModel = () => {
    const same = entries.filter((entry) => entry.sample_id === current.sample_id);
    const next = same[(same.indexOf(current) + 1) % same.length];
    if (!shown.includes(next)) { form.elements.model.value = ""; current = next; refresh(); } else show(next);
  };
  const keys = { j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1), m: otherModel,
    e: () => cycle(form.elements.explanation), ArrowRight: () => block && block.step(1), ArrowLeft: () => block && block.step(-1) };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
    if (keys[event.key] && current) { event.preventDefault(); keys[event.key](); }
  });
  form.addEventListener("input", refresh);
  form.addEventListener("submit", (event) => event.preventDefault());
  const linked = decodeURIComponent(location.hash.slice(1));
  current = entries.find((entry) => key(entry) === linked) || null;
  refresh();
})();
