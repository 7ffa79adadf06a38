"use strict";
/* Token heatmaps from the data of heatmap.py. All text goes through textContent: a sample is never markup. */
const Heatmap = (() => {
  const FAINT = 0.04;
  const element = (tag, className, text) => {
    const made = document.createElement(tag);
    if (className) made.className = className;
    if (text !== undefined) made.textContent = text;
    return made;
  };
  const format = (value) => (value < 0 ? "−" : "") + (Math.abs(value) >= 0.001 || value === 0 ? String(+Math.abs(value).toPrecision(3)) : Math.abs(value).toExponential(1));

  function token(entry, row, at) {
    const text = entry.tokens[at], word = text.replace(/^ /, "");
    const share = Math.max(-1, Math.min(1, row.values[at] / row.scale));
    const made = element("span", "tok", word.replace(/\n/g, "⏎") || "␣");
    if (text !== word) made.classList.add("start");
    if (entry.special[at]) made.classList.add("special");
    else if (Math.abs(share) >= FAINT) {
      made.classList.add(share > 0 ? "pos" : "neg");
      made.style.setProperty("--share", `${Math.round(Math.abs(share) * 100)}%`);
    }
    if (entry.evidence[at]) made.classList.add("evidence");
    if (at === entry.position) made.classList.add("position");
    made.dataset.at = at;
    made.title = `${word}: ${format(row.values[at])}`;
    return made;
  }

  /* One line a method. Pointing at a token shows its value in every line. */
  function draw(entry, rows) {
    const block = element("div", "heatmap");
    block.tabIndex = 0;
    block.setAttribute("role", "group");
    block.setAttribute("aria-label", "relevance of each token by method");
    for (const row of rows) {
      const line = element("div", "line");
      const head = element("div", "method");
      head.append(element("strong", "", row.label));
      if (row.hit !== undefined) {
        const top = element("span", row.hit ? "hit" : "miss", row.hit ? "on evidence" : "elsewhere");
        top.title = "where the most relevant of the tokens that count is";
        head.append(top);
      }
      head.append(element("output", "value", ""));
      const strip = element("div", "tokens");
      entry.tokens.forEach((_, at) => strip.append(token(entry, row, at)));
      line.append(head, strip);
      block.append(line);
    }
    const lines = [...block.querySelectorAll(".line")];
    let chosen = -1;
    const choose = (at) => {
      chosen = at;
      lines.forEach((line, i) => {
        line.querySelectorAll(".tok.chosen").forEach((old) => old.classList.remove("chosen"));
        const found = line.querySelectorAll(".tok")[at];
        if (found) found.classList.add("chosen");
        line.querySelector(".value").textContent = found ? format(rows[i].values[at]) : "";
      });
    };
    block.addEventListener("pointerover", (event) => event.target.dataset.at !== undefined && choose(+event.target.dataset.at));
    block.addEventListener("pointerleave", () => choose(-1));
    block.step = (by) => choose(Math.max(0, Math.min(entry.tokens.length - 1, chosen + by)));
    return block;
  }
  return { draw, element, format };
})();
