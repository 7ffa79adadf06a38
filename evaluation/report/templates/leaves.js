"use strict";
/* Records of leaves.py by their number. The first leaf stands in the page; the others are documents that a frame loads,
   and that hand over their records as text by a message. */
const Leaves = (() => {
  const KEPT = 24; // leaves of one kind in memory
  const LATE_MS = 2000; // for a message after its document has loaded

  /* The text of a leaf. Rejects when the file is not there or says nothing. */
  function load(path) {
    return new Promise((resolve, reject) => {
      const frame = document.createElement("iframe");
      const end = (act, value) => {
        removeEventListener("message", hear);
        frame.remove();
        act(value);
      };
      const hear = (event) => event.source === frame.contentWindow && typeof event.data === "string" && end(resolve, event.data);
      const late = () => end(reject, new Error(`${path} cannot be read: copy the report's folder as a whole`));
      addEventListener("message", hear);
      frame.hidden = true;
      frame.title = "data of this page";
      frame.addEventListener("load", () => setTimeout(late, LATE_MS));
      frame.src = path;
      document.body.append(frame);
    });
  }

  function open(name) {
    const { starts, first } = JSON.parse(document.getElementById(`${name}-leaves`).textContent);
    const read = new Map([[0, Promise.resolve(first)]]);
    const length = starts[starts.length - 1];
    function leaf(at) {
      const found = read.get(at) || load(`${name}/${at}.html`).then(JSON.parse);
      read.delete(at);
      read.set(at, found); // the one used last goes last
      found.catch(() => read.delete(at)); // it may be there when it is asked for again
      for (const old of [...read.keys()].filter((other) => other).slice(0, -KEPT)) read.delete(old);
      return found;
    }
    const leafOf = (record) => {
      let low = 0, high = starts.length - 2;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (starts[middle] <= record) low = middle; else high = middle - 1;
      }
      return low;
    };
    async function slice(from, to) {
      const found = [];
      for (let at = leafOf(from); at < starts.length - 1 && starts[at] < to; at++)
        found.push(...(await leaf(at)).slice(Math.max(0, from - starts[at]), to - starts[at]));
      return found;
    }
    return { length, first, slice, leafEnd: (record) => starts[leafOf(record) + 1], get: async (record) => (await slice(record, record + 1))[0] };
  }
  return { open };
})();
