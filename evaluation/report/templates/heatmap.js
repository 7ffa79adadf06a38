"use strict";
/* Token heatmaps from the data of heatmaps/tokens.py. All text goes through textContent: a sample is never markup. */
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
    const value = row.values[at], low = row.low || 0;
    const share = Math.sign(value) * Math.min(1, Math.max(0, Math.abs(value) - low) / (row.scale - low));
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

  /* What the decoder of an encoder-decoder has seen, behind what the encoder reads. */
  function seen(entry, row) {
    const special = entry.decoder.map((_, at) => (at ? 0 : 1)), first = entry.tokens.length;
    const own = { tokens: entry.decoder, special, evidence: [] }, values = { values: row.decoder, scale: row.scale, low: row.low };
    const made = element("span", "seen");
    made.title = "what the decoder has seen";
    own.tokens.forEach((_, at) => made.append(token(own, values, at)));
    [...made.children].forEach((one, at) => { one.dataset.at = first + at; });
    return made;
  }
  const valueOf = (entry, row, at) => (at < entry.tokens.length ? row.values[at] : row.decoder[at - entry.tokens.length]);

  function pictureLegend() {
    const made = element("p", "legend scale"), ramp = element("i", "ramp of-pictures");
    ramp.setAttribute("aria-hidden", "true");
    made.append(element("span", "", "against"), ramp, element("span", "", "towards the explained logit, each picture on its own scale"), element("span", "boxed", "evidence"));
    return made;
  }

  /* An image with the relevance of its patches under a method. The class token is shown above; a tooltip names each patch. */
  function picture(entry, row) {
    const { source, grid: [rows, columns] } = entry.image;
    const made = element("div", "picture");
    const frame = element("div", "frame");
    const image = (className, from, words) => {
      const shown = element("img", className);
      shown.src = from;
      shown.alt = words;
      frame.append(shown);
    };
    image("under", source, "");
    image("over", row.overlay, row.alt);
    const svg = (tag, attributes) => {
      const one = document.createElementNS(document.querySelector("svg").namespaceURI, tag);
      Object.entries(attributes).forEach(([name, value]) => one.setAttribute(name, value));
      return one;
    };
    const patches = svg("svg", { viewBox: `0 0 ${columns} ${rows}`, "aria-hidden": "true" });
    for (let at = 1; at < entry.tokens.length; at++) {
      const patch = svg("rect", { x: (at - 1) % columns, y: Math.floor((at - 1) / columns), width: 1, height: 1, class: "tok" });
      if (entry.evidence[at]) patch.classList.add("evidence");
      patch.dataset.at = at;
      const title = svg("title", {});
      title.textContent = `${entry.tokens[at]}: ${format(row.values[at])}`;
      patch.append(title);
      patches.append(patch);
    }
    frame.append(patches);
    made.append(token(entry, row, 0), frame);
    return made;
  }

  /* One line a method. Pointing at a token shows its value in every line. */
  function draw(entry, rows) {
    const block = element("div", entry.image ? "heatmap pictures" : "heatmap");
    block.tabIndex = 0;
    block.setAttribute("role", "group");
    block.setAttribute("aria-label", "relevance of each token by method");
    for (const row of rows) {
      const line = element("div", "line");
      const head = element("div", "method");
      head.append(element("strong", "", row.label));
      if (row.low) head.append(element("span", "of", `white is ${format(row.low)}`));
      if (row.of !== undefined) head.append(element("span", "of", row.of));
      if (row.hit !== undefined) {
        const top = element("span", row.hit ? "hit" : "miss", row.hit ? "on evidence" : "elsewhere");
        top.title = "the most relevant of the tokens that count";
        head.append(top);
      }
      head.append(element("output", "value", ""));
      let strip = element("div", "tokens");
      if (entry.image) strip = picture(entry, row);
      else entry.tokens.forEach((_, at) => strip.append(token(entry, row, at)));
      if (row.decoder) strip.append(seen(entry, row));
      line.append(head, strip);
      block.append(line);
    }
    if (entry.image) block.append(pictureLegend());
    const lines = [...block.querySelectorAll(".line")];
    let chosen = -1;
    const choose = (at) => {
      chosen = at;
      lines.forEach((line, i) => {
        line.querySelectorAll(".tok.chosen").forEach((old) => old.classList.remove("chosen"));
        const found = line.querySelectorAll(".tok")[at];
        if (found) found.classList.add("chosen");
        line.querySelector(".value").textContent = found ? format(valueOf(entry, rows[i], at)) : "";
      });
    };
    block.addEventListener("pointerover", (event) => event.target.dataset.at !== undefined && choose(+event.target.dataset.at));
    block.addEventListener("pointerleave", () => choose(-1));
    block.step = (by) => choose(Math.max(0, Math.min(entry.tokens.length + (entry.decoder || []).length - 1, chosen + by)));
    return block;
  }
  return { draw, element, format, token };
})();
